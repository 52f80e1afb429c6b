/* Shared by the two reference servers: the listening socket, and termination with the parent.
 *
 * A reference server shows the limit for an event loop in any language: one thread, no interpreter,
 * only the system calls of an echo. It is measured under the same load.
 */
#ifndef URINGLOOP_REFERENCE_ECHO_H
#define URINGLOOP_REFERENCE_ECHO_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

_Noreturn static void die(const char *what, int error)
{
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(EXIT_FAILURE);
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int listen_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (strlen(path) >= sizeof(address.sun_path))
        die(path, ENAMETOOLONG);
    strcpy(address.sun_path, path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        die(path, errno);
    return fd;
}

static int listen_tcp(const char *port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)atoi(port)),
        .sin_addr = {htonl(INADDR_LOOPBACK)},
    };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    if (fd < 0)
        die("socket", errno);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        die(port, errno);
    return fd;
}

/* The arguments are those of the asyncio servers: --port PORT or --path PATH. */
static int listen_on_arguments(int argc, char **argv)
{
    int fd;

    if (argc != 3 || (strcmp(argv[1], "--port") != 0 && strcmp(argv[1], "--path") != 0)) {
        fprintf(stderr, "usage: %s --port PORT | --path PATH\n", argv[0]);
        exit(2);
    }
    /* The kernel kills the server when the benchmark dies. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    fd = strcmp(argv[1], "--path") == 0 ? listen_unix(argv[2]) : listen_tcp(argv[2]);
    if (listen(fd, 4096) < 0)
        die("listen", errno);
    return fd;
}

/* Prints a line when the server listens, as the asyncio servers do: the port, 0 for a UNIX socket. */
static void announce(int fd)
{
    struct sockaddr_in address = {0};
    socklen_t length = sizeof(address);

    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        die("getsockname", errno);
    printf("{\"port\": %d}\n", address.sin_family == AF_INET ? ntohs(address.sin_port) : 0);
    fflush(stdout);
}

/* Fails on a UNIX socket, which has no TCP_NODELAY; the error is ignored. */
static void set_no_delay(int fd)
{
    int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

#endif
