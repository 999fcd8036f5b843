/* The load client: streams or short requests on keep-alive connections, every token checked and timed.
 *
 *   load --port N --model M [--connections C] [--rate R] [--tokens N] [--batch B] [--warm S]
 *        [--window S] [--pause-us U]
 *
 * Each connection asks for --tokens tokens at --rate in --batch (see double.c) and, when it has them, asks again,
 * --pause-us later. Standard output: "begin" and "end" as the measured window begins and ends, then
 * one line of JSON. The connections stay open until standard input is closed, so that whoever reads
 * this can look at the router's memory meanwhile. TTFT: request sent to first token read.
 * delay: a token made to the same token read.
 */
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
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_ROOM = 8192, READ_BYTES = 1 << 20, MARK_BYTES = 30 };
enum State { IDLE, HEAD, COUNTED, UNTIL_CLOSE, SIZE_LINE, CHUNK, CHUNK_END, TRAILER, DEAD };

typedef struct {
    int fd;
    enum State state;
    int closes, size_done, trailer_blank;
    int64_t left, sent_ns, start_at_ns;
    uint32_t next_seq;
    char head[HEAD_ROOM];
    size_t head_used, mark_used;
    char mark[MARK_BYTES];
} Conn;

typedef struct {
    int64_t *values;
    size_t used, room;
} Samples;

static int port = 0, connections = 1, rate = 0, pause_us = 0, batch = 1, poller, in_window;
static uint32_t tokens = 1;
static double warm_s = 0.3, window_s = 1;
static const char *model = "bench";
static char *request;
static size_t request_bytes;
static Samples ttft, delay, whole;
static long long seen, answers, wrong_order, errors;

static int64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void sample(Samples *to, int64_t value)
{
    if (!in_window)
        return;
    if (to->used == to->room) {
        if (to->room >= 4u << 20)
            return; /* enough to tell a percentile */
        to->room = to->room ? 2 * to->room : 4096;
        to->values = realloc(to->values, to->room * sizeof *to->values);
    }
    to->values[to->used++] = value;
}

static void dial(Conn *conn)
{
    int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    conn->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(conn->fd, (struct sockaddr *)&address, sizeof address)) {
        perror("load: connect");
        exit(1);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = conn};
    epoll_ctl(poller, EPOLL_CTL_ADD, conn->fd, &event);
}

static void ask(Conn *conn)
{
    if (conn->fd < 0)
        dial(conn);
    conn->state = HEAD;
    conn->head_used = conn->mark_used = 0;
    conn->closes = 0;
    conn->next_seq = 0;
    conn->sent_ns = now_ns();
    for (size_t at = 0; at < request_bytes;) {
        ssize_t sent = send(conn->fd, request + at, request_bytes - at, MSG_NOSIGNAL);
        if (sent < 0) {
            errors++;
            conn->state = DEAD;
            return;
        }
        at += sent;
    }
}

static void take_mark(Conn *conn, const char *mark, int64_t now)
{
    if (mark[9] != ' ' || mark[29] != '~') {
        wrong_order++;
        return;
    }
    uint32_t seq = strtoul(mark + 1, NULL, 10);
    wrong_order += seq != conn->next_seq;
    conn->next_seq = seq + 1;
    seen += in_window;
    if (!seq)
        sample(&ttft, now - conn->sent_ns);
    sample(&delay, now - strtoll(mark + 10, NULL, 10));
}

/* Find the marks of a piece of body; one may lie across pieces. */
static void take_body(Conn *conn, const char *from, size_t bytes, int64_t now)
{
    const char *end = from + bytes;
    if (conn->mark_used) {
        size_t missing = MARK_BYTES - conn->mark_used;
        size_t here = bytes < missing ? bytes : missing;
        memcpy(conn->mark + conn->mark_used, from, here);
        conn->mark_used += here;
        from += here;
        if (conn->mark_used < MARK_BYTES)
            return;
        conn->mark_used = 0;
        take_mark(conn, conn->mark, now);
    }
    while ((from = memchr(from, '~', end - from))) {
        if (end - from < MARK_BYTES) {
            conn->mark_used = end - from;
            memcpy(conn->mark, from, conn->mark_used);
            return;
        }
        take_mark(conn, from, now);
        from += MARK_BYTES;
    }
}

static void over(Conn *conn, int64_t now, int whole_answer)
{
    if (whole_answer && conn->next_seq == tokens) {
        answers += in_window;
        sample(&whole, now - conn->sent_ns);
    } else {
        errors++;
    }
    if (conn->closes || !whole_answer) {
        close(conn->fd);
        conn->fd = -1;
    }
    conn->state = IDLE;
    conn->start_at_ns = now + pause_us * 1000LL;
}

static void read_head(Conn *conn)
{
    conn->head[conn->head_used] = 0;
    char *counted = strcasestr(conn->head, "\r\ncontent-length:");
    conn->closes = strcasestr(conn->head, "\r\nconnection: close") != NULL;
    if (strncmp(conn->head + 8, " 200", 4)) {
        if (!errors)
            fprintf(stderr, "load: %.*s\n", (int)strcspn(conn->head, "\r"), conn->head);
        errors++;
    }
    conn->left = 0;
    conn->size_done = 0;
    if (strcasestr(conn->head, "\r\ntransfer-encoding: chunked")) {
        conn->state = SIZE_LINE;
    } else if (counted) {
        conn->state = COUNTED;
        conn->left = atoll(counted + 17);
    } else {
        conn->state = UNTIL_CLOSE;
        conn->closes = 1;
    }
}

static int hex(char digit)
{
    return digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10;
}

static void feed(Conn *conn, const char *at, size_t bytes, int64_t now)
{
    const char *end = at + bytes;
    while (at < end) {
        size_t here = end - at;
        switch (conn->state) {
        case HEAD:
            conn->head[conn->head_used++] = *at++;
            if (conn->head_used >= HEAD_ROOM - 1) {
                errors++;
                conn->state = DEAD;
            } else if (conn->head_used >= 4 && !memcmp(conn->head + conn->head_used - 4, "\r\n\r\n", 4)) {
                read_head(conn);
            }
            break;
        case SIZE_LINE:
            if (*at == '\n') {
                conn->state = conn->left ? CHUNK : TRAILER;
                conn->size_done = 0;
                conn->trailer_blank = 1;
            } else if (*at == '\r' || *at == ';') {
                conn->size_done = 1;
            } else if (!conn->size_done) {
                conn->left = conn->left * 16 + hex(*at);
            }
            at++;
            break;
        case CHUNK:
        case COUNTED:
            if ((int64_t)here > conn->left)
                here = conn->left;
            take_body(conn, at, here, now);
            at += here;
            conn->left -= here;
            if (!conn->left && conn->state == CHUNK)
                conn->state = CHUNK_END;
            break;
        case UNTIL_CLOSE:
            take_body(conn, at, here, now);
            at = end;
            break;
        case CHUNK_END:
            if (*at++ == '\n')
                conn->state = SIZE_LINE;
            break;
        case TRAILER:
            if (*at == '\n' && conn->trailer_blank) {
                over(conn, now, 1);
                return;
            }
            if (*at != '\r')
                conn->trailer_blank = *at == '\n';
            at++;
            break;
        case IDLE:
        case DEAD:
            return;
        }
    }
    if (conn->state == COUNTED && !conn->left)
        over(conn, now, 1);
}

static void take_input(Conn *conn)
{
    static char buffer[READ_BYTES];
    ssize_t got = recv(conn->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    int64_t now = now_ns();
    if (got > 0) {
        feed(conn, buffer, got, now);
    } else if (!got || errno != EAGAIN) {
        if (conn->state == IDLE) {
            close(conn->fd); /* an idle connection may be closed; the next request dials */
            conn->fd = -1;
        } else {
            over(conn, now, conn->state == UNTIL_CLOSE && !got);
        }
    }
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, Samples *of)
{
    qsort(of->values, of->used, sizeof *of->values, by_value);
    printf(",\"%s\":{\"n\":%zu", name, of->used);
    if (of->used)
        printf(",\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f", of->values[of->used / 2] / 1e3,
            of->values[of->used * 9 / 10] / 1e3, of->values[of->used * 99 / 100] / 1e3, of->values[of->used - 1] / 1e3);
    printf("}");
}

static void make_request(void)
{
    char body[512];
    size_t bytes = sprintf(body, "{\"model\":\"%s\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"bench %d %u %d.\"}]}", model, rate, tokens, batch);
    request = malloc(bytes + 512);
    request_bytes = sprintf(request,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
        "Authorization: Bearer sk-bench\r\nAccept: text/event-stream\r\nUser-Agent: bench\r\nContent-Length: %zu\r\n\r\n", port, bytes);
    memcpy(request + request_bytes, body, bytes);
    request_bytes += bytes;
}

static void read_arguments(int count, char **words)
{
    for (int i = 1; i + 1 < count; i += 2) {
        char *name = words[i], *value = words[i + 1];
        if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--model")) model = value;
        else if (!strcmp(name, "--connections")) connections = atoi(value);
        else if (!strcmp(name, "--rate")) rate = atoi(value);
        else if (!strcmp(name, "--tokens")) tokens = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--warm")) warm_s = atof(value);
        else if (!strcmp(name, "--window")) window_s = atof(value);
        else if (!strcmp(name, "--pause-us")) pause_us = atoi(value);
        else if (!strcmp(name, "--batch")) batch = atoi(value);
        else exit(2);
    }
}

int main(int count, char **words)
{
    signal(SIGPIPE, SIG_IGN);
    read_arguments(count, words);
    make_request();
    poller = epoll_create1(0);
    Conn *conns = calloc(connections, sizeof *conns);
    int64_t began = now_ns(), window_at = began + (int64_t)(warm_s * 1e9), window_end = INT64_MAX;
    int64_t spread_ns = rate ? 1000000000LL / rate / connections : 0; /* no two streams in step */
    if (rate && spread_ns < 200000)
        spread_ns = 200000; /* a burst of hundreds of requests is not what is measured */
    for (int i = 0; i < connections; i++) {
        conns[i].fd = -1;
        conns[i].start_at_ns = began + i * spread_ns;
    }
    int64_t now = began;
    while (now < window_end) {
        struct epoll_event ready[512];
        int64_t next_ns = in_window ? window_end : window_at;
        for (int i = 0; i < connections; i++) {
            if (conns[i].state != IDLE)
                continue;
            if (conns[i].start_at_ns <= now)
                ask(&conns[i]);
            else if (conns[i].start_at_ns < next_ns)
                next_ns = conns[i].start_at_ns;
        }
        int64_t left = next_ns - now_ns();
        struct timespec wait = {left > 0 ? left / 1000000000 : 0, left > 0 ? left % 1000000000 : 0};
        int found = epoll_pwait2(poller, ready, 512, &wait, NULL);
        for (int i = 0; i < found; i++) {
            Conn *conn = ready[i].data.ptr;
            if (conn->fd >= 0)
                take_input(conn);
            if (conn->state == IDLE && conn->start_at_ns <= now_ns())
                ask(conn);
        }
        now = now_ns();
        if (!in_window && now >= window_at) {
            in_window = 1;
            puts("begin");
            fflush(stdout);
            window_at = now = now_ns();
            window_end = now + (int64_t)(window_s * 1e9);
        }
    }
    puts("end");
    fflush(stdout);
    printf("{\"seconds\":%.6f,\"tokens\":%lld,\"answers\":%lld,\"wrong_order\":%lld,\"errors\":%lld", (now - window_at) / 1e9, seen, answers,
        wrong_order, errors);
    print_samples("ttft", &ttft);
    print_samples("delay", &delay);
    print_samples("whole", &whole);
    puts("}");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
