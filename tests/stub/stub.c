/* A streaming OpenAI-compatible server that keeps an exact timetable and writes down when it really kept it.
 *
 * For measuring load tools, so it must cost less than what it measures: one thread, epoll, a heap of due times, no
 * allocation while it serves. Build: gcc -O2 -o stub stub.c    Run: stub PORT FIRST_MS GAP_MS LOGFILE
 *
 * Token k of a request is due FIRST_MS + k * GAP_MS after that request was completely read; a late token does not move
 * the ones after it. Each token is one send() unless both delays are zero. SIGTERM or SIGINT writes the log and ends it.
 * The log has a line per request, in the order of reading: when it was read (CLOCK_MONOTONIC, ns), then for each
 * token the ns from then to just before its send(). Only what the benchmark needs is understood: POST with a
 * Content-Length and "max_tokens", and GET, whose answer is a list of models; one request at a time per connection. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { IN_SIZE = 1 << 16, OUT_SIZE = 1 << 17, MAX_TOKENS = 4096, MAX_FDS = 1 << 14 };

struct conn {
    int fd, tokens, sent, usage;
    size_t in_len, out_len;
    int64_t read_at, due;
    int64_t *log; /* this request's place in the log */
    char in[IN_SIZE + 1], out[OUT_SIZE];
};

static struct conn *conns[MAX_FDS], *heap[MAX_FDS + 1]; /* heap[1] is due first */
static int heap_len, epoll_fd;
static int64_t first_ns, gap_ns;
static int64_t *records; /* per request: read_at, tokens, offsets... */
static size_t records_len, records_size;
static volatile sig_atomic_t stopping;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void heap_push(struct conn *c)
{
    int at = ++heap_len;
    for (; at > 1 && heap[at / 2]->due > c->due; at /= 2)
        heap[at] = heap[at / 2];
    heap[at] = c;
}

static void heap_sink(int at, struct conn *c)
{
    for (int child; (child = 2 * at) <= heap_len; at = child) {
        if (child < heap_len && heap[child + 1]->due < heap[child]->due)
            child++;
        if (heap[child]->due >= c->due)
            break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

static void heap_pop(void)
{
    struct conn *last = heap[heap_len--];
    if (heap_len)
        heap_sink(1, last);
}

static void heap_remove(struct conn *c) /* only when a client hangs up in mid-stream */
{
    for (int i = 1; i <= heap_len; i++)
        if (heap[i] == c) {
            c->due = INT64_MIN;
            for (; i > 1; i /= 2)
                heap[i] = heap[i / 2];
            heap[1] = c;
            heap_pop();
            return;
        }
}

static void hang_up(struct conn *c)
{
    heap_remove(c);
    conns[c->fd] = NULL;
    close(c->fd);
    free(c);
}

static void put(struct conn *c, const char *text, int len)
{
    if (c->out_len + len > OUT_SIZE)
        die("a client reads too slowly for the buffer of a connection");
    memcpy(c->out + c->out_len, text, len);
    c->out_len += len;
}

static void put_chunk(struct conn *c, const char *data)
{
    char text[512];
    put(c, text, snprintf(text, sizeof text, "%zx\r\n%s\r\n", strlen(data), data));
}

static void flush(struct conn *c)
{
    ssize_t n = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
    if (n < 0)
        n = 0; /* full or gone: what is left goes with the next token, a hang-up is seen by read */
    c->out_len -= n;
    memmove(c->out, c->out + n, c->out_len);
    if (c->out_len) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.fd = c->fd};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
    }
}

static void send_due(struct conn *c)
{
    char data[400];
    int64_t t;
    while (c->sent < c->tokens && c->due <= (t = now())) {
        int last = ++c->sent == c->tokens;
        c->log[1 + c->sent] = t - c->read_at;
        c->due += gap_ns;
        snprintf(data, sizeof data,
                 "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"stub\",\"choices\":"
                 "[{\"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":%s}]}\n\n",
                 last ? "\"length\"" : "null");
        put_chunk(c, data);
        if (last) {
            if (c->usage) { /* only where it was asked for: some clients take no event without a choice */
                snprintf(data, sizeof data,
                         "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"stub\","
                         "\"choices\":[],\"usage\":{\"prompt_tokens\":32,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
                         c->tokens, 32 + c->tokens);
                put_chunk(c, data);
            }
            put_chunk(c, "data: [DONE]\n\n");
            put(c, "0\r\n\r\n", 5);
        }
        if (gap_ns || last)
            flush(c);
    }
}

static void serve(struct conn *c)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    static const char models[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 31\r\n\r\n"
                                 "{\"data\":[{\"id\": \"stub\"      }]}";
    static const char missing[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
    char *end, *field;
    c->in[c->in_len] = 0;
    if (!(end = strstr(c->in, "\r\n\r\n")))
        return;
    if (!strncmp(c->in, "GET ", 4)) { /* a tool looks whether a server is there */
        c->in_len = 0;
        put(c, models, sizeof models - 1);
        flush(c);
        return;
    }
    if (!(field = strcasestr(c->in, "\r\ncontent-length:")))
        return;
    size_t whole = end + 4 - c->in + strtoul(field + 17, NULL, 10);
    if (c->in_len < whole)
        return;
    if (!strstr(c->in, "/completions HTTP/")) { /* a tool tries to have its prompts counted */
        c->in_len = 0;
        put(c, missing, sizeof missing - 1);
        flush(c);
        return;
    }
    if (!(field = strstr(end, "\"max_tokens\":")) || (c->tokens = atoi(field + 13)) < 1 || c->tokens > MAX_TOKENS) {
        fprintf(stderr, "stub: max_tokens must be from 1 to %d\n", MAX_TOKENS);
        exit(1);
    }
    c->usage = strstr(end, "\"include_usage\"") != NULL;
    c->read_at = now();
    c->due = c->read_at + first_ns;
    c->sent = 0;
    c->in_len = 0;
    if (records_len + 2 + c->tokens > records_size)
        die("the log is full");
    c->log = records + records_len;
    records_len += 2 + c->tokens;
    c->log[0] = c->read_at;
    c->log[1] = c->tokens;
    put(c, head, sizeof head - 1);
    if (first_ns) {
        flush(c);
        heap_push(c);
    } else {
        send_due(c);
        if (c->sent < c->tokens)
            heap_push(c);
    }
}

static void receive(struct conn *c)
{
    ssize_t n = recv(c->fd, c->in + c->in_len, IN_SIZE - c->in_len, 0);
    if (n > 0) {
        c->in_len += n;
        serve(c);
    } else if (n == 0 || errno != EAGAIN) {
        hang_up(c);
    }
}

static void greet(int listener)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= MAX_FDS)
            die("too many connections");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!(conns[fd] = calloc(1, sizeof(struct conn))))
            die("calloc");
        conns[fd]->fd = fd;
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

static void on_signal(int number)
{
    (void)number;
    stopping = 1;
}

static void write_log(const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f)
        die(path);
    for (size_t i = 0; i < records_len; i += 2 + records[i + 1]) {
        fprintf(f, "%lld", (long long)records[i]);
        for (int k = 0; k < records[i + 1]; k++)
            fprintf(f, " %lld", (long long)records[i + 2 + k]);
        fputc('\n', f);
    }
    fclose(f);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: stub PORT FIRST_MS GAP_MS LOGFILE\n");
        return 2;
    }
    first_ns = (int64_t)(atof(argv[2]) * 1e6);
    gap_ns = (int64_t)(atof(argv[3]) * 1e6);
    records_size = 1 << 24; /* 128 MiB of address space, touched only as far as used */
    records = malloc(records_size * sizeof *records);
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* 1 us instead of 50: the timetable is the truth */

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!records || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096))
        die("bind");
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event events[256], e = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);

    while (!stopping) {
        struct timespec wait, *timeout = NULL;
        if (heap_len) {
            int64_t left = heap[1]->due - now();
            left = left < 0 ? 0 : left;
            wait = (struct timespec){left / 1000000000, left % 1000000000};
            timeout = &wait;
        }
        int n = epoll_pwait2(epoll_fd, events, 256, timeout, NULL);
        for (int64_t t = now(); heap_len && heap[1]->due <= t;) {
            struct conn *c = heap[1];
            send_due(c);
            if (c->sent < c->tokens)
                heap_sink(1, c);
            else
                heap_pop();
        }
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                greet(listener);
                continue;
            }
            if (events[i].events & EPOLLOUT && conns[fd]) {
                struct epoll_event in_only = {.events = EPOLLIN, .data.fd = fd};
                epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &in_only);
                flush(conns[fd]);
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && conns[fd])
                receive(conns[fd]);
        }
    }
    write_log(argv[4]);
    return 0;
}
