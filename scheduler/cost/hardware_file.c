/* scheduler/cost/hardware_file.c: hardware as `graphrun calibrate` writes it. */
#include "scheduler/cost/hardware.h"
#include "runtime/base/files.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VERSION    4
#define FILE_LIMIT (1 << 20)

typedef struct reader {
    const char *file;
    gr_diag *d;
    gr_status st; /* of the first error */
} reader;

/* Keys of the file's parts that are numbers, and where they go. */
typedef struct number {
    const char *key;
    size_t at;
    bool whole, may_be_zero; /* whole: an uint64_t, else a double */
} number;

#define AT(field) offsetof(gr_hardware, field)
static const number top[] = {{"device_bytes", AT(device_bytes), true, false},
                             {"host_bytes", AT(host_bytes), true, true},
                             {"step_ns", AT(step_ns), true, true},
                             {"collective_ns", AT(collective_ns), true, true},
                             {"sum_ns", AT(sum_ns), true, true},
                             {"layer_graph_bytes", AT(layer_graph_bytes), true, true},
                             {"reduce_share", AT(reduce_share), false, true},
                             {"flops", AT(flops), false, false},
                             {"pinned", AT(pinned), false, true},
                             {"decode_attention", AT(decode_attention), false, true},
                             {"head", AT(head), false, true},
                             {"logits", AT(logits), false, true},
                             {"kept", AT(kept), false, true}};
static const number rates[] = {
    {"memory", AT(memory_bytes), false, false}, {"kv", AT(kv_bytes), false, true},
    {"host", AT(host_memory), false, false},    {"disk", AT(disk), false, false},
    {"link", AT(link), false, false},           {"network", AT(network), false, false}};
static const number experts[] = {{"product", AT(experts.product), false, false},
                                 {"gradient", AT(experts.gradient), false, false},
                                 {"read", AT(experts.read), false, false},
                                 {"padding", AT(experts.padding), false, true},
                                 {"launch_ns", AT(experts.launch_ns), true, true}};
static const number state_disk[] = {{"read", AT(state_disk.read), false, false},
                                    {"write", AT(state_disk.write), false, false},
                                    {"latency_ns", AT(state_disk.latency_ns), true, true}};
static const char *const libraries[] = {
#define X(name, text) text,
    GR_LIBRARY_MAP(X)
#undef X
};

GR_PRINTF(4, 5) static void bad(reader *r, const char *at, const char *key, const char *fmt, ...)
{
    gr_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    r->st = gr_diag_error(r->d, (gr_loc){.file = r->file}, GR_E_INVALID, "%s%s%s: %s", at, key ? "." : "",
                          key ? key : "", s.text);
    gr_str_release(&s);
}

/* Whether o is an object; if it has other keys than these n, or lacks one of those before `optional`, that is
 * said. */
static bool has_some_keys(reader *r, const char *at, json_t *o, const char *const *keys, size_t n,
                          size_t optional)
{
    const char *key;
    json_t *value;
    if (!json_is_object(o)) {
        bad(r, at, NULL, "should be an object");
        return false;
    }
    json_object_foreach(o, key, value)
    {
        size_t i = 0;
        while (i < n && strcmp(keys[i], key)) i++;
        const char *near = i == n ? gr_near(key, keys, n) : NULL;
        if (i == n)
            bad(r, at, NULL, "unknown key '%s'%s%s%s", key, near ? "; did you mean '" : "", near ? near : "",
                near ? "'?" : "");
    }
    for (size_t i = 0; i < optional; i++)
        if (!json_object_get(o, keys[i])) bad(r, at, NULL, "key '%s' is missing", keys[i]);
    return true;
}

/* The same, of which none may be missing. */
static bool has_keys(reader *r, const char *at, json_t *o, const char *const *keys, size_t n)
{
    return has_some_keys(r, at, o, keys, n, n);
}

static uint64_t whole_of(reader *r, const char *at, json_t *o, const char *key, uint64_t least, uint64_t most)
{
    json_t *v = json_object_get(o, key);
    if (!v) return least; /* has been said */
    json_int_t x = json_is_integer(v) ? json_integer_value(v) : -1;
    if (!json_is_integer(v))
        bad(r, at, key, "should be a whole number");
    else if (x < 0 || (uint64_t)x < least || (uint64_t)x > most)
        bad(r, at, key, "%lld is not in %llu .. %llu", (long long)x, (unsigned long long)least,
            (unsigned long long)most);
    else
        return (uint64_t)x;
    return least;
}

static double rate_of(reader *r, const char *at, json_t *o, const char *key, bool may_be_zero)
{
    json_t *v = json_object_get(o, key);
    double x = json_is_number(v) ? json_number_value(v) : 0;
    const bool ok = (x > 0 || (may_be_zero && x == 0)) && x < 1e30;
    if (v && !json_is_number(v))
        bad(r, at, key, "should be a number");
    else if (v && !ok)
        bad(r, at, key, "%g is not a rate above 0%s", x, may_be_zero ? ", or 0" : "");
    return ok ? x : 1;
}

static void read_numbers(reader *r, const char *at, json_t *o, const number *list, size_t n, gr_hardware *out)
{
    for (size_t i = 0; i < n; i++) {
        void *to = (char *)out + list[i].at;
        if (list[i].whole)
            *(uint64_t *)to = whole_of(r, at, o, list[i].key, !list[i].may_be_zero, INT64_MAX);
        else
            *(double *)to = rate_of(r, at, o, list[i].key, list[i].may_be_zero);
    }
}

static void read_names(reader *r, json_t *o, gr_hardware *out)
{
    static const char *const devices[] = {"cpu", "cuda"};
    json_t *name = json_object_get(o, "name"), *device = json_object_get(o, "device");
    const char *text = json_string_value(name);
    if (name && (!text || !*text || strlen(text) >= sizeof(out->name)))
        bad(r, "$", "name", "should be a text of 1 to %zu bytes", sizeof(out->name) - 1);
    else if (name)
        snprintf(out->name, sizeof(out->name), "%s", text);
    for (size_t i = 0; i < GR_LEN(devices) && json_is_string(device); i++)
        if (!strcmp(devices[i], json_string_value(device))) out->device = devices[i];
    if (device && !out->device) bad(r, "$", "device", "should be \"cpu\" or \"cuda\"");
}

static void read_overhead(reader *r, json_t *o, gr_hardware *out)
{
    json_t *parts = json_object_get(o, "overhead");
    if (!parts || !has_keys(r, "$.overhead", parts, libraries, GR_N_LIBRARIES)) return;
    for (int i = 0; i < GR_N_LIBRARIES; i++) {
        out->part[i] = whole_of(r, "$.overhead", parts, libraries[i], 0, 1ULL << 50);
        if (i != GR_LIBRARY_COMM) out->overhead_bytes += out->part[i];
    }
}

/* What files had before there was anything to tell is a communicator for each group. */
static void read_communicators(reader *r, json_t *o, gr_hardware *out)
{
    static const char *const keys[] = {"group", "messages"};
    json_t *v = json_object_get(o, "communicators");
    out->group_bytes = out->part[GR_LIBRARY_COMM];
    if (!v || !has_keys(r, "$.communicators", v, keys, GR_LEN(keys))) return;
    out->group_bytes = whole_of(r, "$.communicators", v, "group", 0, 1ULL << 40);
    out->message_bytes = whole_of(r, "$.communicators", v, "messages", 0, 1ULL << 40);
}

/* Rows and widths make a grid: see gr_hardware. */
static void check_grid(reader *r, const gr_hardware *h)
{
    const gr_rate *x = h->rates;
    uint32_t widths = 0;
    while (widths < h->n_rates && x[widths].rows == x[0].rows) widths++;
    for (uint32_t i = 0; i < h->n_rates; i++) {
        bool ok = i < widths ? !i || x[i].width > x[i - 1].width : x[i].width == x[i - widths].width;
        ok = ok && (i % widths ? x[i].rows == x[i - 1].rows : !i || x[i].rows > x[i - widths].rows);
        char at[32];
        snprintf(at, sizeof(at), "$.matrix[%u]", i);
        if (ok && !(i + 1 == h->n_rates && h->n_rates % widths)) continue;
        bad(r, at, NULL, "rows and widths should rise, and make a full grid");
        return;
    }
}

/* Length of the list that is the value of a key; 0: it is none, which is said. */
static size_t list_of(reader *r, json_t *o, const char *key, size_t most, json_t **list)
{
    *list = json_object_get(o, key);
    const size_t n = json_array_size(*list);
    if (!*list || (n && n <= most)) return n;
    bad(r, "$", key, "should be a list of 1 to %zu rates", most);
    return 0;
}

static void read_matrix(reader *r, json_t *o, gr_hardware *out)
{
    static const char *const keys[] = {"rows", "width", "forward", "backward", "decode"};
    json_t *list;
    gr_status before = r->st;
    const size_t n = list_of(r, o, "matrix", GR_RATES_MAX, &list);
    for (size_t i = 0; i < n; i++) {
        char at[32];
        snprintf(at, sizeof(at), "$.matrix[%zu]", i);
        json_t *v = json_array_get(list, i);
        if (!has_keys(r, at, v, keys, GR_LEN(keys))) continue;
        out->rates[out->n_rates++] =
            (gr_rate){(uint32_t)whole_of(r, at, v, "rows", 1, 1 << 30),
                      (uint32_t)whole_of(r, at, v, "width", 1, 1 << 30), rate_of(r, at, v, "forward", false),
                      rate_of(r, at, v, "backward", false), rate_of(r, at, v, "decode", false)};
    }
    if (n && r->st == before) check_grid(r, out);
}

static void read_attention(reader *r, json_t *o, gr_hardware *out)
{
    static const char *const keys[] = {"length", "forward", "backward", "unordered"};
    json_t *list;
    const size_t n = list_of(r, o, "attention", GR_LENGTHS_MAX, &list);
    for (size_t i = 0; i < n; i++) {
        char at[48];
        snprintf(at, sizeof(at), "$.attention[%zu]", i);
        json_t *v = json_array_get(list, i);
        if (!has_some_keys(r, at, v, keys, GR_LEN(keys), GR_LEN(keys) - 1)) continue;
        gr_attention_rate *x = &out->attention[out->n_attention++];
        *x = (gr_attention_rate){.length = (uint32_t)whole_of(r, at, v, "length", 1, 1 << 30),
                                 .forward = rate_of(r, at, v, "forward", false),
                                 .backward = rate_of(r, at, v, "backward", false)};
        if (json_object_get(v, "unordered")) x->unordered = rate_of(r, at, v, "unordered", false);
        if (out->n_attention > 1 && x->length <= x[-1].length) bad(r, at, "length", "should rise");
    }
}

static void read_copies(reader *r, json_t *o, gr_hardware *out)
{
    static const char *const keys[] = {"ranks", "h2d", "d2h", "both"};
    json_t *list;
    const size_t n = list_of(r, o, "copies", GR_COPIES_MAX, &list);
    for (size_t i = 0; i < n; i++) {
        char at[32];
        snprintf(at, sizeof(at), "$.copies[%zu]", i);
        json_t *v = json_array_get(list, i);
        if (!has_keys(r, at, v, keys, GR_LEN(keys))) continue;
        gr_copy_rate *x = &out->copies[out->n_copies++];
        *x =
            (gr_copy_rate){(uint32_t)whole_of(r, at, v, "ranks", 1, 1 << 16), rate_of(r, at, v, "h2d", false),
                           rate_of(r, at, v, "d2h", false), rate_of(r, at, v, "both", false)};
        if (out->n_copies > 1 ? x->ranks <= x[-1].ranks : x->ranks != 1)
            bad(r, at, "ranks", "should be 1 at first, and rise");
        if (x->both > GR_MIN(x->h2d, x->d2h)) bad(r, at, "both", "%g is more than one way alone", x->both);
    }
    out->copy = out->copies[0];
}

/* Two whole numbers of nanoseconds: within a host, between hosts. */
static void read_steps(reader *r, const char *at, json_t *o, const char *key, uint32_t to[2])
{
    json_t *v = json_object_get(o, key);
    bool ok = json_array_size(v) == 2;
    for (size_t i = 0; i < 2 && ok; i++) {
        json_t *x = json_array_get(v, i);
        const json_int_t ns = json_integer_value(x);
        ok = json_is_integer(x) && ns >= 0 && ns <= 1000000000;
        to[i] = ok ? (uint32_t)ns : 0;
    }
    if (v && !ok)
        bad(r, at, key, "should be two whole numbers in 0 .. 1000000000: within a host, between hosts");
}

static double share_of(reader *r, const char *at, json_t *o, const char *key)
{
    const double x = rate_of(r, at, o, key, false);
    if (x > 1) bad(r, at, key, "%g is more than all", x);
    return x;
}

static void read_protocols(reader *r, json_t *list, gr_cluster *out)
{
    static const char *const keys[] = {"ring_share", "tree_share", "most", "ring_ns", "tree_ns"};
    const size_t n = json_array_size(list);
    if (list && (!n || n > GR_PROTOCOLS_MAX))
        bad(r, "$.cluster", "protocols", "should be a list of 1 to %d", GR_PROTOCOLS_MAX);
    for (size_t i = 0; i < n && n <= GR_PROTOCOLS_MAX; i++) {
        char at[48];
        snprintf(at, sizeof(at), "$.cluster.protocols[%zu]", i);
        json_t *v = json_array_get(list, i);
        if (!has_keys(r, at, v, keys, GR_LEN(keys))) continue;
        gr_protocol *p = &out->protocols[out->n_protocols++];
        p->ring_share = share_of(r, at, v, "ring_share");
        p->tree_share = share_of(r, at, v, "tree_share");
        p->most = rate_of(r, at, v, "most", true);
        read_steps(r, at, v, "ring_ns", p->ring_ns);
        read_steps(r, at, v, "tree_ns", p->tree_ns);
    }
}

/* What files had before there were clusters in them is left out of the model. */
static void read_cluster(reader *r, json_t *o, gr_cluster *out)
{
    static const char *const keys[] = {"adapters",   "pod",    "oversubscription",
                                       "peer_bytes", "spread", "protocols"};
    static const char at[] = "$.cluster";
    json_t *v = json_object_get(o, "cluster");
    if (!v || !has_keys(r, at, v, keys, GR_LEN(keys))) return;
    out->adapters = (uint32_t)whole_of(r, at, v, "adapters", 1, 1 << 16);
    out->pod = (uint32_t)whole_of(r, at, v, "pod", 0, 1 << 20);
    out->oversubscription = rate_of(r, at, v, "oversubscription", false);
    if (out->oversubscription < 1) bad(r, at, "oversubscription", "%g is less than 1", out->oversubscription);
    out->peer_bytes = whole_of(r, at, v, "peer_bytes", 0, 1ULL << 40);
    out->spread = rate_of(r, at, v, "spread", true);
    if (out->spread > 1) bad(r, at, "spread", "%g is more than the mean itself", out->spread);
    read_protocols(r, json_object_get(v, "protocols"), out);
}

/* Likewise. */
static void read_experts(reader *r, json_t *o, gr_hardware *out)
{
    static const char *const keys[] = {"product", "gradient", "read", "padding", "launch_ns"};
    json_t *v = json_object_get(o, "experts");
    if (v && has_keys(r, "$.experts", v, keys, GR_LEN(keys)))
        read_numbers(r, "$.experts", v, experts, GR_LEN(experts), out);
}

/* Likewise. */
static void read_state_disk(reader *r, json_t *o, gr_hardware *out)
{
    static const char *const keys[] = {"read", "write", "latency_ns"};
    json_t *v = json_object_get(o, "state_disk");
    if (v && has_keys(r, "$.state_disk", v, keys, GR_LEN(keys)))
        read_numbers(r, "$.state_disk", v, state_disk, GR_LEN(state_disk), out);
}

static void read_file(reader *r, json_t *o, gr_hardware *out)
{
    static const char *const keys[] = {"version", "name",          "device",       "bytes_per_second",
                                       "matrix",  "overhead",      "device_bytes", "host_bytes",
                                       "step_ns", "collective_ns", "sum_ns",       "reduce_share",
                                       "devices", "flops",         "attention",    "decode_attention",
                                       "head",    "logits",        "kept",         "layer_graph_bytes",
                                       "pinned",  "copies",        "cluster",      "experts",
                                       "fp8",     "communicators", "state_disk"};
    static const char *const bandwidths[] = {"memory", "kv", "host", "disk", "link", "network"};
    if (!has_some_keys(r, "$", o, keys, GR_LEN(keys), GR_LEN(keys) - 5)) return;
    json_t *version = json_object_get(o, "version"), *bytes = json_object_get(o, "bytes_per_second");
    if (version && (!json_is_integer(version) || json_integer_value(version) != VERSION)) {
        bad(r, "$", "version", "this program reads version %d", VERSION);
        return;
    }
    read_names(r, o, out);
    read_numbers(r, "$", o, top, GR_LEN(top), out);
    if (json_object_get(o, "fp8")) out->fp8 = rate_of(r, "$", o, "fp8", false);
    out->devices = (uint32_t)whole_of(r, "$", o, "devices", 1, 1 << 16);
    if (bytes && has_keys(r, "$.bytes_per_second", bytes, bandwidths, GR_LEN(bandwidths)))
        read_numbers(r, "$.bytes_per_second", bytes, rates, GR_LEN(rates), out);
    read_copies(r, o, out);
    read_matrix(r, o, out);
    read_attention(r, o, out);
    read_overhead(r, o, out);
    read_communicators(r, o, out);
    read_cluster(r, o, &out->cluster);
    read_experts(r, o, out);
    read_state_disk(r, o, out);
}

gr_status gr_hardware_read(gr_hardware *out, const char *path, gr_diag *d)
{
    char *text;
    size_t n;
    json_error_t e;
    reader r = {path, d, gr_file_read(path, FILE_LIMIT, &text, &n, d)};
    if (r.st) return r.st;
    *out = (gr_hardware){0};
    json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (o)
        read_file(&r, o, out);
    else
        r.st = gr_diag_error(d, (gr_loc){path, (unsigned)e.line, (unsigned)e.column}, GR_E_INVALID, "%s",
                             e.text);
    json_decref(o);
    free(text);
    return r.st;
}

static void write_numbers(const gr_hardware *h, const char *indent, const number *list, size_t n, gr_str *out)
{
    for (size_t i = 0; i < n; i++) {
        const void *from = (const char *)h + list[i].at;
        gr_str_printf(out, "%s\"%s\": ", indent, list[i].key);
        if (list[i].whole)
            gr_str_printf(out, "%llu", (unsigned long long)*(const uint64_t *)from);
        else
            gr_str_printf(out, "%.4g", *(const double *)from);
        gr_str_puts(out, i + 1 < n ? ",\n" : "\n");
    }
}

static void write_cluster(const gr_cluster *c, gr_str *out)
{
    if (!c->n_protocols) return; /* as files without it */
    gr_str_printf(
        out,
        "  \"cluster\": {\n    \"adapters\": %u,\n    \"pod\": %u,\n    \"oversubscription\": %.4g,\n"
        "    \"peer_bytes\": %llu,\n    \"spread\": %.4g,\n    \"protocols\": [\n",
        c->adapters, c->pod, c->oversubscription, (unsigned long long)c->peer_bytes, c->spread);
    for (uint32_t i = 0; i < c->n_protocols; i++) {
        const gr_protocol *p = &c->protocols[i];
        gr_str_printf(
            out,
            "      {\"ring_share\": %.4g, \"tree_share\": %.4g, \"most\": %.4g, \"ring_ns\": [%u, %u], "
            "\"tree_ns\": [%u, %u]}%s\n",
            p->ring_share, p->tree_share, p->most, p->ring_ns[0], p->ring_ns[1], p->tree_ns[0], p->tree_ns[1],
            i + 1 < c->n_protocols ? "," : "");
    }
    gr_str_puts(out, "    ]\n  },\n");
}

static void write_experts(const gr_hardware *h, gr_str *out)
{
    if (h->experts.product <= 0) return;
    gr_str_puts(out, "  \"experts\": {\n");
    write_numbers(h, "    ", experts, GR_LEN(experts), out);
    gr_str_puts(out, "  },\n");
}

static void write_state_disk(const gr_hardware *h, gr_str *out)
{
    if (h->state_disk.read <= 0) return;
    gr_str_puts(out, "  \"state_disk\": {\n");
    write_numbers(h, "    ", state_disk, GR_LEN(state_disk), out);
    gr_str_puts(out, "  },\n");
}

void gr_hardware_write(const gr_hardware *h, gr_str *out)
{
    gr_str_printf(out, "{\n  \"version\": %d,\n  \"name\": \"%s\",\n  \"device\": \"%s\",\n", VERSION,
                  h->name, h->device);
    gr_str_puts(out, "  \"bytes_per_second\": {\n");
    write_numbers(h, "    ", rates, GR_LEN(rates), out);
    gr_str_puts(out, "  },\n  \"copies\": [\n");
    for (uint32_t i = 0; i < h->n_copies; i++)
        gr_str_printf(out, "    {\"ranks\": %u, \"h2d\": %.4g, \"d2h\": %.4g, \"both\": %.4g}%s\n",
                      h->copies[i].ranks, h->copies[i].h2d, h->copies[i].d2h, h->copies[i].both,
                      i + 1 < h->n_copies ? "," : "");
    gr_str_puts(out, "  ],\n  \"matrix\": [\n");
    for (uint32_t i = 0; i < h->n_rates; i++)
        gr_str_printf(
            out,
            "    {\"rows\": %u, \"width\": %u, \"forward\": %.4g, \"backward\": %.4g, \"decode\": %.4g}%s\n",
            h->rates[i].rows, h->rates[i].width, h->rates[i].forward, h->rates[i].backward,
            h->rates[i].decode, i + 1 < h->n_rates ? "," : "");
    gr_str_puts(out, "  ],\n  \"attention\": [\n");
    for (uint32_t i = 0; i < h->n_attention; i++) {
        const gr_attention_rate *a = &h->attention[i];
        gr_str_printf(out, "    {\"length\": %u, \"forward\": %.4g, \"backward\": %.4g", a->length,
                      a->forward, a->backward);
        if (a->unordered > 0) gr_str_printf(out, ", \"unordered\": %.4g", a->unordered);
        gr_str_printf(out, "}%s\n", i + 1 < h->n_attention ? "," : "");
    }
    gr_str_puts(out, "  ],\n  \"overhead\": {");
    for (int i = 0; i < GR_N_LIBRARIES; i++)
        gr_str_printf(out, "%s\"%s\": %llu", i ? ", " : "", libraries[i], (unsigned long long)h->part[i]);
    gr_str_printf(out, "},\n  \"devices\": %u,\n", h->devices);
    write_cluster(&h->cluster, out);
    write_experts(h, out);
    if (h->message_bytes || h->group_bytes != h->part[GR_LIBRARY_COMM])
        gr_str_printf(out, "  \"communicators\": {\"group\": %llu, \"messages\": %llu},\n",
                      (unsigned long long)h->group_bytes, (unsigned long long)h->message_bytes);
    write_state_disk(h, out);
    if (h->fp8 > 0) gr_str_printf(out, "  \"fp8\": %.4g,\n", h->fp8);
    write_numbers(h, "  ", top, GR_LEN(top), out);
    gr_str_puts(out, "}\n");
}
