/* An echo server on level-triggered epoll, recv and send: the limit for readiness loops.
 *
 * Bytes that send() does not take are kept, and the connection is not read until they are sent:
 * this is backpressure on the peer.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/epoll.h>

#include "echo.h"

/* One buffer for all connections: it stays in the cache, and is free after each echo. */
#define BUFFER_SIZE (256 * 1024)
#define EVENTS_MAX 1024

struct connection {
    int fd;
    char *pending;  /* Bytes that send() did not take; owned, NULL if none. */
    size_t length;  /* Of pending. */
    size_t written; /* Bytes of pending that are sent. */
};

static char buffer[BUFFER_SIZE];

static void watch(int epoll, struct connection *c, uint32_t events, int operation)
{
    struct epoll_event event = {.events = events, .data.ptr = c};

    if (epoll_ctl(epoll, operation, c->fd, &event) < 0)
        die("epoll_ctl", errno);
}

static void close_connection(struct connection *c)
{
    close(c->fd); /* Also removes it from the epoll set: the descriptor has no duplicate. */
    free(c->pending);
    free(c);
}

static void accept_all(int epoll, int listener)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct connection *c;

        if (fd < 0) {
            if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR)
                return;
            die("accept4", errno);
        }
        set_no_delay(fd);
        c = calloc(1, sizeof(*c));
        if (c == NULL)
            die("calloc", ENOMEM);
        c->fd = fd;
        watch(epoll, c, EPOLLIN, EPOLL_CTL_ADD);
    }
}

static void keep_pending(int epoll, struct connection *c, const char *data, size_t length)
{
    c->pending = malloc(length);
    if (c->pending == NULL)
        die("malloc", ENOMEM);
    memcpy(c->pending, data, length);
    c->length = length;
    c->written = 0;
    watch(epoll, c, EPOLLOUT, EPOLL_CTL_MOD);
}

static void on_readable(int epoll, struct connection *c)
{
    ssize_t received = recv(c->fd, buffer, sizeof(buffer), 0);
    ssize_t sent;

    if (received < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (received <= 0) {
        close_connection(c);
        return;
    }
    sent = send(c->fd, buffer, (size_t)received, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        sent = 0;
    if (sent < 0)
        close_connection(c);
    else if (sent < received)
        keep_pending(epoll, c, buffer + sent, (size_t)(received - sent));
}

static void on_writable(int epoll, struct connection *c)
{
    ssize_t sent =
        send(c->fd, c->pending + c->written, c->length - c->written, MSG_NOSIGNAL);

    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR)
            close_connection(c);
        return;
    }
    c->written += (size_t)sent;
    if (c->written < c->length)
        return;
    free(c->pending);
    c->pending = NULL;
    watch(epoll, c, EPOLLIN, EPOLL_CTL_MOD);
}

int main(int argc, char **argv)
{
    static struct epoll_event events[EVENTS_MAX];
    struct connection listening = {0};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int flags;

    listening.fd = listen_on_arguments(argc, argv);
    flags = fcntl(listening.fd, F_GETFL);
    if (epoll < 0 || flags < 0 || fcntl(listening.fd, F_SETFL, flags | O_NONBLOCK) < 0)
        die("setup", errno);
    watch(epoll, &listening, EPOLLIN, EPOLL_CTL_ADD);
    announce(listening.fd);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS_MAX, -1);

        if (count < 0 && errno != EINTR)
            die("epoll_wait", errno);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;

            if (c == &listening)
                accept_all(epoll, listening.fd);
            else if (c->pending != NULL)
                on_writable(epoll, c);
            else
                on_readable(epoll, c);
        }
    }
}
