/* The upstream double: an OpenAI-shaped SSE server that is faster than anything measured through it.
 *
 *   double --host 127.0.0.1 --port N --alias NAME [--cpu K]
 *
 * One thread, one epoll. It takes llama-server's own options, so a daemon can own it as its engine.
 * A chat request says in its text what it wants: "bench RATE TOKENS BATCH." - RATE tokens a second, 0
 * for as fast as the socket takes them, then BATCH of them in one send (a paced token is always one
 * send). Each token is one event in one chunk and carries its sequence number and the CLOCK_MONOTONIC
 * nanosecond at which it was made:  ~00000042 0000001234567890123~
 * GET /bench/hangups tells how many streams were hung up by their reader, and when the last one was.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BATCH = 32, MAX_FDS = 65536, IN_BYTES = 1 << 16, FRAME_ROOM = 640, KEEP_BODY = 1 << 16 };

typedef struct {
    int fd;
    char *in;          /* request bytes not yet used: head, and the first KEEP_BODY of the body */
    size_t in_used;
    int64_t skip;      /* body bytes beyond those, still to be thrown away */
    int streaming, paced, timed, wants_out;
    uint32_t next_seq, tokens, batch;
    int64_t period_ns, due_ns;
    char out[MOST_BATCH * FRAME_ROOM];
    size_t out_at, out_end;
} Conn;

static Conn *conns[MAX_FDS];
static Conn *heap[MAX_FDS]; /* paced streams by due_ns, the next one first */
static int heap_size;
static int poller;
static const char *alias = "bench";
static char frame_head[FRAME_ROOM];
static size_t frame_head_bytes, frame_bytes;
static const char frame_tail[] = "\"},\"logprobs\":null,\"finish_reason\":null}],\"system_fingerprint\":\"bench\"}\n\n";
static long long hangups, last_hangup_ns;

static int64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void heap_push(Conn *conn)
{
    int at = heap_size++;
    while (at && heap[(at - 1) / 2]->due_ns > conn->due_ns) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = conn;
    conn->timed = 1;
}

static void heap_settle(int at, Conn *conn)
{
    for (;;) {
        int child = 2 * at + 1;
        if (child + 1 < heap_size && heap[child + 1]->due_ns < heap[child]->due_ns)
            child++;
        if (child >= heap_size || heap[child]->due_ns >= conn->due_ns)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = conn;
}

static Conn *heap_pop(void)
{
    Conn *first = heap[0];
    Conn *last = heap[--heap_size];
    if (heap_size)
        heap_settle(0, last);
    first->timed = 0;
    return first;
}

static void heap_remove(Conn *conn)
{
    int kept = 0; /* rare (a stream was hung up): rebuild */
    int old_size = heap_size;
    heap_size = 0;
    for (int i = 0; i < old_size; i++)
        if (heap[i] != conn)
            heap[kept++] = heap[i];
    for (int i = 0; i < kept; i++)
        heap_push(heap[i]);
    conn->timed = 0;
}

static void digits(char *to, int count, uint64_t value)
{
    while (count--) {
        to[count] = '0' + value % 10;
        value /= 10;
    }
}

static void want_out(Conn *conn, int wanted)
{
    if (conn->wants_out == wanted)
        return;
    conn->wants_out = wanted;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (wanted ? EPOLLOUT : 0), .data.fd = conn->fd};
    epoll_ctl(poller, EPOLL_CTL_MOD, conn->fd, &event);
}

static void hang_up(Conn *conn)
{
    if (conn->streaming) {
        hangups++;
        last_hangup_ns = now_ns();
    }
    if (conn->timed)
        heap_remove(conn);
    conns[conn->fd] = NULL;
    close(conn->fd);
    free(conn->in);
    free(conn);
}

static void put(Conn *conn, const char *text, size_t bytes)
{
    memcpy(conn->out + conn->out_end, text, bytes);
    conn->out_end += bytes;
}

static void put_chunk(Conn *conn, const char *text, size_t bytes)
{
    char size[16];
    put(conn, size, sprintf(size, "%zx\r\n", bytes));
    put(conn, text, bytes);
    put(conn, "\r\n", 2);
}

static void put_token(Conn *conn, int64_t at_ns)
{
    char *mark;
    char size[16];
    put(conn, size, sprintf(size, "%zx\r\n", frame_bytes));
    put(conn, frame_head, frame_head_bytes);
    mark = conn->out + conn->out_end;
    mark[0] = mark[29] = '~';
    digits(mark + 1, 8, conn->next_seq++);
    mark[9] = ' ';
    digits(mark + 10, 19, at_ns);
    conn->out_end += 30;
    put(conn, frame_tail, sizeof frame_tail - 1);
    put(conn, "\r\n", 2);
}

static void put_end(Conn *conn)
{
    char text[FRAME_ROOM];
    int bytes = sprintf(text,
        "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1764374400,\"model\":\"%s\","
        "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%u,\"total_tokens\":%u}}\n\n",
        alias, conn->tokens, conn->tokens + 9);
    put_chunk(conn, text, bytes);
    put_chunk(conn, "data: [DONE]\n\n", 14);
    put(conn, "0\r\n\r\n", 5);
    conn->streaming = 0;
}

/* Send what is pending; 1 when all of it went, 0 when the socket is full, -1 when it is gone. */
static int flush_out(Conn *conn)
{
    while (conn->out_at < conn->out_end) {
        ssize_t sent = send(conn->fd, conn->out + conn->out_at, conn->out_end - conn->out_at, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN)
                return -1;
            want_out(conn, 1);
            return 0;
        }
        conn->out_at += sent;
    }
    conn->out_at = conn->out_end = 0;
    return 1;
}

/* Take a stream further: due tokens, or a batch of a blast. The connection may be gone afterwards. */
static void advance(Conn *conn)
{
    for (;;) {
        int flushed = flush_out(conn);
        if (flushed < 0) {
            hang_up(conn);
            return;
        }
        if (!flushed)
            return;
        if (!conn->streaming) {
            want_out(conn, 0);
            return;
        }
        int64_t now = now_ns();
        if (conn->next_seq == conn->tokens) {
            put_end(conn);
        } else if (!conn->paced) {
            for (unsigned i = 0; i < conn->batch && conn->next_seq < conn->tokens; i++)
                put_token(conn, now);
            if (conn->next_seq < conn->tokens) {
                if (flush_out(conn) < 0)
                    hang_up(conn);
                else
                    want_out(conn, 1); /* the others get their turn before the next batch */
                return;
            }
        } else if (conn->due_ns <= now) {
            put_token(conn, now);
            conn->due_ns += conn->period_ns;
            if (conn->due_ns < now - 1000000000LL)
                conn->due_ns = now; /* a reader that slept is not paid back */
        } else {
            want_out(conn, 0);
            if (!conn->timed)
                heap_push(conn);
            return;
        }
    }
}

static void reply_json(Conn *conn, int status, const char *text)
{
    conn->out_end += sprintf(conn->out + conn->out_end,
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", status,
        status == 200 ? "OK" : "Not Found", strlen(text), text);
}

static void begin_chat(Conn *conn, const char *body)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    unsigned rate = 0, tokens = 1, batch = 1;
    const char *ask = strstr(body, "bench ");
    if (ask)
        sscanf(ask, "bench %u %u %u.", &rate, &tokens, &batch);
    if (!strstr(body, "\"stream\":true") && !strstr(body, "\"stream\": true")) {
        char text[FRAME_ROOM];
        sprintf(text,
            "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1764374400,\"model\":\"%s\",\"choices\":[{\"index\":0,"
            "\"message\":{\"role\":\"assistant\",\"content\":\"~00000000 %019lld~\"},\"finish_reason\":\"stop\"}],"
            "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}", alias, (long long)now_ns());
        reply_json(conn, 200, text);
        return;
    }
    put(conn, head, sizeof head - 1);
    conn->streaming = 1;
    conn->next_seq = 0;
    conn->tokens = tokens;
    conn->batch = batch > MOST_BATCH ? MOST_BATCH : batch ? batch : 1;
    conn->paced = rate > 0;
    if (rate) {
        conn->period_ns = 1000000000LL / rate;
        conn->due_ns = now_ns() + conn->period_ns;
        put_token(conn, now_ns());
    }
}

static void begin(Conn *conn, const char *request, const char *body)
{
    char text[FRAME_ROOM];
    if (!strncmp(request, "POST ", 5)) {
        begin_chat(conn, body);
    } else if (!strncmp(request, "GET /health", 11)) {
        reply_json(conn, 200, "{\"status\":\"ok\"}");
    } else if (!strncmp(request, "GET /v1/models", 14)) {
        snprintf(text, sizeof text, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1764374400,\"owned_by\":\"bench\"}]}", alias);
        reply_json(conn, 200, text);
    } else if (!strncmp(request, "GET /bench/hangups", 18)) {
        sprintf(text, "{\"count\":%lld,\"last_ns\":%lld}", hangups, last_hangup_ns);
        reply_json(conn, 200, text);
    } else {
        reply_json(conn, 404, "{\"error\":\"not here\"}");
    }
}

/* Serve the request at the front of the input, if it is whole. */
static void try_request(Conn *conn)
{
    while (!conn->streaming && !conn->skip && conn->out_at == conn->out_end) {
        conn->in[conn->in_used] = 0;
        char *end = strstr(conn->in, "\r\n\r\n");
        if (!end)
            return;
        size_t head_bytes = end + 4 - conn->in;
        char *counted = strcasestr(conn->in, "\r\ncontent-length:");
        int64_t body_bytes = counted && counted < end ? atoll(counted + 17) : 0;
        int64_t kept = body_bytes < KEEP_BODY ? body_bytes : KEEP_BODY;
        if ((int64_t)(conn->in_used - head_bytes) < kept)
            return;
        char *after = conn->in + head_bytes + kept;
        size_t left = conn->in + conn->in_used - after;
        char saved = *after;
        *after = 0;
        begin(conn, conn->in, end + 4);
        *after = saved;
        memmove(conn->in, after, left);
        conn->in_used = left;
        if (body_bytes > kept) {
            int64_t more = body_bytes - kept;
            size_t here = (int64_t)left < more ? left : (size_t)more;
            conn->in_used -= here;
            memmove(conn->in, conn->in + here, conn->in_used);
            conn->skip = more - here;
        }
        int fd = conn->fd;
        advance(conn);
        if (conns[fd] != conn)
            return;
    }
}

static void take_input(Conn *conn)
{
    for (;;) {
        ssize_t got = recv(conn->fd, conn->in + conn->in_used, IN_BYTES + KEEP_BODY - conn->in_used, 0);
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            hang_up(conn);
            return;
        }
        size_t useless = (int64_t)got < conn->skip ? (size_t)got : (size_t)conn->skip;
        conn->skip -= useless;
        memmove(conn->in + conn->in_used, conn->in + conn->in_used + useless, got - useless);
        conn->in_used += got - useless;
        int fd = conn->fd;
        try_request(conn);
        if (conns[fd] != conn || got < 4096)
            return;
    }
}

static void accept_all(int listener)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        int on = 1;
        if (fd >= MAX_FDS) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Conn *conn = calloc(1, sizeof *conn);
        conn->in = malloc(IN_BYTES + KEEP_BODY + 1);
        conn->fd = fd;
        conns[fd] = conn;
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

static int listen_on(const char *host, int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) {
        perror("double: bind");
        exit(1);
    }
    return fd;
}

int main(int count, char **words)
{
    const char *host = "127.0.0.1";
    int port = 0;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(words[i], "--host"))
            host = words[i + 1];
        else if (!strcmp(words[i], "--port"))
            port = atoi(words[i + 1]);
        else if (!strcmp(words[i], "--alias"))
            alias = words[i + 1];
        else if (!strcmp(words[i], "--cpu")) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(atoi(words[i + 1]), &set);
            sched_setaffinity(0, sizeof set, &set);
        }
    }
    frame_head_bytes = snprintf(frame_head, sizeof frame_head,
        "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1764374400,\"model\":\"%s\","
        "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"", alias);
    frame_bytes = frame_head_bytes + 30 + sizeof frame_tail - 1;
    int listener = listen_on(host, port);
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[512];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        struct timespec wait, *bound = NULL;
        if (heap_size) {
            int64_t left = heap[0]->due_ns - now_ns();
            if (left < 0)
                left = 0;
            wait = (struct timespec){left / 1000000000, left % 1000000000};
            bound = &wait;
        }
        int found = epoll_pwait2(poller, ready, 512, bound, NULL);
        for (int i = 0; i < found; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                accept_all(listener);
                continue;
            }
            if (conns[fd] && ready[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
                hang_up(conns[fd]);
                continue;
            }
            if (conns[fd] && ready[i].events & EPOLLIN)
                take_input(conns[fd]);
            if (conns[fd] && ready[i].events & EPOLLOUT)
                advance(conns[fd]);
        }
        int64_t now = now_ns();
        while (heap_size && heap[0]->due_ns <= now)
            advance(heap_pop());
    }
}
