/* graphs/loader/pools.c: pools of ranks: which ranks they are, and which nodes run on them.
 *
 * Ranks are counted through the hosts: rank r is device r % D of host r / D. Pools that name their ranks (at)
 * take these; then those of a size (ranks) take the first that are free, in the order of the file; those of a
 * share divide what is left, on one host (same_node) before the others. Pools that share ranks are the same
 * ranks, and every rank belongs to one. On one rank all pools are that rank.
 */
#include "graphs/loader/loader.h"

#include "ops/base/configs.h"
#include "ops/base/states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pool_cfg {
    const char *ranks, *at, *with;
    uint32_t share, models;
    bool same_node;
} pool_cfg;

#define CFG(f) offsetof(pool_cfg, f)

/* clang-format off */
const gr_key gr_pool_keys[] = {
    {"ranks", GR_KEY_TEXT, CFG(ranks), false, NULL, 0, 0, NULL, "so many ranks, or hosts by devices, such as 2x4"},
    {"at", GR_KEY_TEXT, CFG(at), false, NULL, 0, 0, NULL, "these ranks, such as 0-3 or \"0-3,8\""},
    {"share", GR_KEY_UINT, CFG(share), false, NULL, 1, 1 << 20, NULL, "so many parts of what is left by pools with a size"},
    {"with", GR_KEY_TEXT, CFG(with), false, NULL, 0, 0, NULL, "the ranks of that pool: colocated"},
    {"same_node", GR_KEY_BOOL, CFG(same_node), false, "false", 0, 0, NULL, "all on one host"},
    {"models", GR_KEY_UINT, CFG(models), false, NULL, 1, 1 << 20, NULL, "at most so many models a rank; default: any number"},
    {0}};
/* clang-format on */

/* ---- as written ------------------------------------------------------------------------------------------
 */

static gr_ranks_pool *find_pool(const gr_graph *g, const char *name)
{
    for (size_t i = 0; i < g->n_pools; i++)
        if (!strcmp(g->pools[i].name, name)) return &g->pools[i];
    return NULL;
}

static const gr_ranks_pool *pool_of_name(gr_loader *l, const char *name, gr_loc at)
{
    const gr_ranks_pool *p = find_pool(l->g, name);
    if (p) return p;
    const char **names = gr_calloc(l->g->n_pools + 1, sizeof(*names));
    for (size_t i = 0; i < l->g->n_pools; i++) names[i] = l->g->pools[i].name;
    const char *near = gr_near(name, names, l->g->n_pools);
    gr_diag_error(l->d, at, GR_E_INVALID, "unknown pool '%s'%s%s%s%s", name, near ? "; did you mean '" : "",
                  near ? near : "", near ? "'?" : "", l->g->n_pools ? "" : "; the file has no 'pools'");
    free(names);
    return NULL;
}

const gr_ranks_pool *gr_pool_named(gr_loader *l, const gr_value *v)
{
    const char *name = gr_value_text(l, "pool", v);
    return name ? pool_of_name(l, name, v->at) : NULL;
}

static bool read_size(const char *text, uint32_t *hosts, uint32_t *devices)
{
    unsigned h = 0, n = 0;
    int end = 0;
    bool cross = sscanf(text, "%9ux%9u%n", &h, &n, &end) == 2 && !text[end] && h;
    bool plain = !cross && sscanf(text, "%9u%n", &n, &end) == 1 && !text[end];
    *hosts = cross ? h : 0;
    *devices = n;
    return (cross || plain) && n > 0;
}

static void read_pool(gr_loader *l, const gr_pair *p)
{
    gr_ranks_pool *pool = &l->g->pools[l->g->n_pools++];
    *pool = (gr_ranks_pool){.name = p->key, .at = p->at};
    gr_name_formed(l, "a pool", p->key, p->at);
    if (p->value.broken || !gr_value_is_map(l, p->key, &p->value)) return;
    pool_cfg c = {0};
    gr_keys_read(l, &p->value, p->at, gr_arena_printf(l->arena, "pool '%s'", p->key), gr_pool_keys, NULL, &c,
                 NULL);
    int n = 0;
    for (size_t i = 0; i < 4; i++) n += gr_value_get(&p->value, gr_pool_keys[i].name) != NULL;
    if (n != 1)
        gr_diag_error(l->d, p->at, GR_E_INVALID, "pool '%s' needs one of 'ranks', 'at', 'share' and 'with'%s",
                      p->key, n ? ", not more" : "");
    if (c.ranks && !read_size(c.ranks, &pool->hosts, &pool->devices))
        gr_diag_error(l->d, gr_value_get(&p->value, "ranks")->at, GR_E_INVALID,
                      "'ranks' must be a number of ranks, or hosts by devices such as 2x4, not '%s'",
                      c.ranks);
    if (c.same_node && (pool->hosts > 1 || c.with))
        gr_diag_error(l->d, gr_value_get(&p->value, "same_node")->at, GR_E_INVALID,
                      c.with ? "'same_node' belongs to the pool that 'with' names"
                             : "'same_node' does not go with the ranks of several hosts");
    pool->list = c.at;
    pool->share = c.share;
    pool->same_node = c.same_node;
    pool->models = c.models;
}

/* `with:` names any pool of the file; the one at the end of the chain says which ranks. */
static void find_partners(gr_loader *l, const gr_value *v)
{
    for (size_t i = 0; i < v->n; i++) {
        const gr_value *map = &v->pairs[i].value,
                       *with = map->kind == GR_VALUE_MAP ? gr_value_get(map, "with") : NULL;
        if (with && with->kind == GR_VALUE_SCALAR && !with->broken)
            l->g->pools[i].with = pool_of_name(l, with->text, with->at);
    }
    for (size_t i = 0; i < l->g->n_pools; i++) {
        const gr_ranks_pool *p = &l->g->pools[i];
        size_t steps = 0;
        while (p->with && steps++ <= l->g->n_pools) p = p->with;
        if (!p->with) continue;
        gr_diag_error(l->d, l->g->pools[i].at, GR_E_INVALID,
                      "pool '%s' is the ranks of itself: 'with' goes in a circle", l->g->pools[i].name);
        l->g->pools[i].with = NULL;
    }
}

/* ---- which ranks -----------------------------------------------------------------------------------------
 */

typedef struct dealer {
    gr_loader *l;
    uint32_t n, devices; /* ranks in all; of a host */
    uint32_t *taken;     /* of ranks: 1 + the pool that has it; 0: free */
    bool bad;
} dealer;

GR_PRINTF(3, 4) static void refuse(dealer *d, const gr_ranks_pool *p, const char *fmt, ...)
{
    gr_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    gr_diag_error(d->l->d, p->at, GR_E_INVALID, "pool '%s' %s", p->name, s.text);
    gr_str_release(&s);
    d->bad = true;
}

static uint32_t free_ranks(const dealer *d, uint32_t first, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t r = first; r < first + n; r++) count += !d->taken[r];
    return count;
}

/* The first n that are free from `first` on. */
static void take_ranks(dealer *d, const gr_ranks_pool *p, uint32_t first, uint32_t n)
{
    for (uint32_t r = first; n && r < d->n; r++) {
        if (d->taken[r]) continue;
        d->taken[r] = 1 + (uint32_t)(p - d->l->g->pools);
        n--;
    }
}

/* n ranks on each of so many hosts. */
static void take_on_hosts(dealer *d, const gr_ranks_pool *p, uint32_t hosts, uint32_t n)
{
    uint32_t found = 0;
    for (uint32_t first = 0; first < d->n && found < hosts; first += d->devices) {
        if (free_ranks(d, first, d->devices) < n) continue;
        take_ranks(d, p, first, n);
        found++;
    }
    if (found < hosts && hosts == 1)
        refuse(d, p, "needs %u ranks of one host; no host of %u devices has so many free", n, d->devices);
    else if (found < hosts)
        refuse(d, p, "needs %u ranks on each of %u hosts; %u of %u hosts have so many free", n, hosts, found,
               d->n / d->devices);
}

static void take_anywhere(dealer *d, const gr_ranks_pool *p, uint32_t n)
{
    uint32_t there = free_ranks(d, 0, d->n);
    if (there < n)
        refuse(d, p, "needs %u ranks; of %u there are %u free", n, d->n, there);
    else
        take_ranks(d, p, 0, n);
}

/* "0-3,8": sets mine [n]. */
static bool read_list(dealer *d, const gr_ranks_pool *p, bool *mine)
{
    const char *t = p->list;
    for (unsigned a, b;;) {
        int end = 0;
        if (sscanf(t, "%9u-%9u%n", &a, &b, &end) != 2) {
            end = 0;
            if (sscanf(t, "%9u%n", &a, &end) != 1) break;
            b = a;
        }
        if (a > b) break;
        if (b >= d->n) {
            refuse(d, p, "has rank %u, which does not exist: there are %u, from 0", b, d->n);
            return false;
        }
        memset(mine + a, true, b - a + 1);
        t += end;
        if (!*t) return true;
        if (*t++ != ',') break;
    }
    refuse(d, p, "has ranks '%s', which are no list such as 0-3,8", p->list);
    return false;
}

/* Ranks that another pool has: all of its, and no others, or none. */
static void take_list(dealer *d, gr_ranks_pool *p)
{
    bool *mine = gr_calloc(d->n + 1, sizeof(*mine));
    const gr_ranks_pool *other = NULL;
    uint32_t shared = 0;
    bool same = true;
    if (!read_list(d, p, mine)) {
        free(mine);
        return;
    }
    for (uint32_t r = 0; r < d->n; r++)
        if (mine[r] && d->taken[r] && !other) {
            other = &d->l->g->pools[d->taken[r] - 1];
            shared = r;
        }
    for (uint32_t r = 0; other && r < d->n; r++)
        same = same && mine[r] == (d->taken[r] == 1 + (uint32_t)(other - d->l->g->pools));
    uint32_t host = UINT32_MAX;
    bool far = false;
    for (uint32_t r = 0; r < d->n; r++) {
        if (!mine[r]) continue;
        far = far || (host != UINT32_MAX && host != r / d->devices);
        host = r / d->devices;
        if (!other) d->taken[r] = 1 + (uint32_t)(p - d->l->g->pools);
    }
    if (p->same_node && far) refuse(d, p, "has ranks of several hosts, though 'same_node'");
    if (other && same) {
        p->with = other;
    } else if (other) {
        refuse(d, p, "and pool '%s' both have rank %u, but are not the same ranks", other->name, shared);
        gr_diag_note(d->l->d, other->at, "the other pool; 'with: %s' is all of its ranks", other->name);
    }
    free(mine);
}

static void take_shares(dealer *d)
{
    const gr_graph *g = d->l->g;
    uint64_t all = 0, before = 0, left = free_ranks(d, 0, d->n);
    uint32_t *n = gr_calloc(g->n_pools + 1, sizeof(*n));
    for (size_t i = 0; i < g->n_pools; i++) all += g->pools[i].share;
    for (size_t i = 0; i < g->n_pools; i++) {
        const gr_ranks_pool *p = &g->pools[i];
        if (!p->share) continue;
        n[i] = (uint32_t)(left * (before + p->share) / all - left * before / all);
        before += p->share;
        if (!n[i])
            refuse(d, p, "has %u of %llu shares of %llu ranks, which is none", p->share,
                   (unsigned long long)all, (unsigned long long)left);
    }
    for (int far = 0; far < 2; far++)
        for (size_t i = 0; i < g->n_pools && !d->bad; i++) {
            if (!n[i] || g->pools[i].same_node == far) continue;
            if (far)
                take_anywhere(d, &g->pools[i], n[i]);
            else
                take_on_hosts(d, &g->pools[i], 1, n[i]);
        }
    free(n);
}

/* ---- roles ---------------------------------------------------------------------------------------------
 */

static const char *list_text(gr_arena *arena, const uint32_t *ranks, uint32_t n)
{
    gr_str s = {0};
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && ranks[end] == ranks[end - 1] + 1;) end++;
        gr_str_printf(&s, end - i > 1 ? "%s%u-%u" : "%s%u", i ? "," : "", ranks[i], ranks[end - 1]);
    }
    const char *text = gr_arena_strdup(arena, s.text ? s.text : "");
    gr_str_release(&s);
    return text;
}

/* Ranks of one host, where there are several that have as many each. */
static uint32_t node_of(const gr_ranks_role *c, uint32_t devices)
{
    uint32_t each = c->hosts ? c->n / c->hosts : 0;
    if (c->hosts < 2 || c->n % c->hosts) return 0;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->ranks[i] / devices != c->ranks[i / each * each] / devices) return 0;
    return each;
}

/* The ranks of one pool; of all where none is given. */
static void add_role(dealer *d, gr_ranks_pool *p)
{
    gr_graph *g = d->l->g;
    gr_ranks_role *c = &g->roles[g->n_roles];
    uint32_t last = UINT32_MAX;
    c->ranks = gr_arena_alloc(g->arena, d->n * sizeof(*c->ranks));
    for (uint32_t r = 0; r < d->n; r++) {
        if (p && d->taken[r] != 1 + (uint32_t)(p - g->pools)) continue;
        c->hosts += last == UINT32_MAX || last != r / d->devices;
        last = r / d->devices;
        c->ranks[c->n++] = r;
    }
    c->first_host = c->n ? c->ranks[0] / d->devices : 0;
    c->node = node_of(c, d->devices);
    c->text = list_text(g->arena, c->ranks, c->n);
    if (p) p->role = (uint32_t)g->n_roles;
    g->n_roles++;
}

/* By their first rank, so that rank 0 is of the first. */
static void make_roles(dealer *d)
{
    gr_graph *g = d->l->g;
    uint32_t left = free_ranks(d, 0, d->n), first = 0;
    while (left && d->taken[first]) first++;
    if (left)
        gr_diag_error(d->l->d, g->pools[0].at, GR_E_INVALID,
                      "%u of %u ranks are in no pool, such as rank %u: 'share' takes what others leave", left,
                      d->n, first);
    bool *done = gr_calloc(g->n_pools + 1, sizeof(*done));
    for (uint32_t r = 0; r < d->n; r++) {
        if (!d->taken[r] || done[d->taken[r] - 1]) continue;
        done[d->taken[r] - 1] = true;
        add_role(d, &g->pools[d->taken[r] - 1]);
    }
    free(done);
    for (size_t i = 0; i < g->n_pools; i++) {
        const gr_ranks_pool *p = &g->pools[i];
        while (p->with) p = p->with;
        g->pools[i].role = p->role;
    }
}

static void balance_ranks(dealer *d)
{
    gr_graph *g = d->l->g;
    for (size_t i = 0; i < g->n_pools; i++)
        if (g->pools[i].list) take_list(d, &g->pools[i]);
    for (size_t i = 0; i < g->n_pools && !d->bad; i++) {
        const gr_ranks_pool *p = &g->pools[i];
        if (p->hosts)
            take_on_hosts(d, p, p->hosts, p->devices);
        else if (p->devices && p->same_node)
            take_on_hosts(d, p, 1, p->devices);
        else if (p->devices)
            take_anywhere(d, p, p->devices);
    }
    if (!d->bad) take_shares(d);
    if (!d->bad) make_roles(d);
}

void gr_read_pools(gr_loader *l)
{
    gr_graph *g = l->g;
    const gr_value *v = gr_value_get(&g->source->root, "pools");
    size_t before = l->d->n_errors;
    if (v && (v->kind == GR_VALUE_NULL || v->broken || !gr_value_is_map(l, "pools", v))) v = NULL;
    g->pools = gr_arena_alloc(l->arena, (v ? v->n : 0) * sizeof(*g->pools));
    g->roles = gr_arena_alloc(l->arena, ((v ? v->n : 0) + 1) * sizeof(*g->roles));
    for (size_t i = 0; v && i < v->n; i++) read_pool(l, &v->pairs[i]);
    if (v) find_partners(l, v);
    dealer d = {.l = l, .n = l->o && l->o->ranks ? l->o->ranks : 1};
    g->hosts = l->o && l->o->hosts ? l->o->hosts : 1;
    d.devices = GR_MAX(d.n / g->hosts, 1u);
    d.taken = gr_calloc(d.n + 1, sizeof(*d.taken));
    if (g->n_pools && d.n > 1 && l->d->n_errors == before) balance_ranks(&d);
    if (!g->n_roles) add_role(&d, NULL); /* one rank, no pools, or wrong ones */
    free(d.taken);
}

/* ---- who runs where --------------------------------------------------------------------------------------
 */

static const gr_ranks_pool *pool_of_model(const gr_graph *g, const gr_model *m)
{
    return m->pool ? m->pool : &g->pools[0];
}

/* Beside what it reads: values of the host lane beside its rows, a selection too; others beside the last of
 * their inputs. NULL: it reads nothing. */
static const gr_ranks_pool *pool_of_inputs(const gr_node *n)
{
    if (n->of && (n->op->lane == GR_LANE_HOST || n->op->narrows || n->op->joins))
        return n->of->placement.pool;
    const gr_node *last = NULL;
    for (size_t i = 0; i < n->n_inputs; i++)
        if (n->inputs[i]->placement.pool && (!last || n->inputs[i]->index > last->index)) last = n->inputs[i];
    return last ? last->placement.pool : NULL;
}

/* Data is drawn where the first node runs that reads it. */
static const gr_ranks_pool *pool_of_reader(const gr_graph *g, const gr_node *n)
{
    for (size_t i = n->index + 1; i < g->n_nodes; i++)
        for (size_t j = 0; j < g->nodes[i]->n_inputs; j++)
            if (g->nodes[i]->inputs[j] == n && g->nodes[i]->placement.pool)
                return g->nodes[i]->placement.pool;
    return &g->pools[0];
}

static void find_pools(const gr_graph *g)
{
    for (size_t i = 0; i < g->n_nodes; i++) {
        gr_node *n = g->nodes[i];
        if (!n->placement.pool) n->placement.pool = n->model ? pool_of_model(g, n->model) : pool_of_inputs(n);
    }
    for (size_t i = g->n_nodes; i-- > 0;) {
        gr_node *n = g->nodes[i];
        if (!n->placement.pool) n->placement.pool = pool_of_reader(g, n);
    }
    for (size_t i = 0; i < g->n_nodes; i++) { /* what reads only data, that is known by now */
        gr_node *n = g->nodes[i];
        n->placement.role = n->placement.pool->role;
    }
}

/* An update changes the weights where they are. */
static void check_updates(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        gr_node *n = l->g->nodes[i];
        if (!l->order[i]->updates || !n->placement.at.line) continue;
        if (!n->model->pool) n->model->pool = n->placement.pool;
        if (n->model->pool == n->placement.pool) continue;
        gr_diag_error(l->d, n->placement.at, GR_E_INVALID,
                      "'%s' trains model '%s', whose weights are on pool '%s', not '%s'", n->name,
                      n->model->name, n->model->pool->name, n->placement.pool->name);
    }
}

static void check_copies(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_nodes && l->g->n_roles > 1; i++)
        if (l->g->nodes[i]->op->follows)
            gr_diag_error(l->d, l->g->nodes[i]->at, GR_E_INVALID,
                          "'%s' copies weights, which is not built for pools on several sets of ranks",
                          l->g->nodes[i]->name);
}

static void check_teachers(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        const gr_node *n = l->g->nodes[i], *teacher = gr_node_teacher(n);
        if (teacher && teacher->placement.role != n->placement.role)
            gr_diag_error(l->d, gr_value_get(n->value, "teacher")->at, GR_E_INVALID,
                          "'%s' teaches on pool '%s' and '%s' learns on pool '%s': hidden states do not go "
                          "from pool to "
                          "pool; give both the same",
                          teacher->name, teacher->placement.pool->name, n->name, n->placement.pool->name);
    }
}

static void check_repeated(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        const gr_node *n = l->g->nodes[i], *select = n->timing.repeated_by;
        if (select && n->placement.role != select->placement.role)
            gr_diag_error(l->d, n->placement.at.line ? n->placement.at : n->at, GR_E_INVALID,
                          "'%s' runs on pool '%s', but '%s', which repeats it, on pool '%s'", n->name,
                          n->placement.pool->name, select->name, select->placement.pool->name);
    }
}

/* The models whose weights a role holds. */
static uint32_t count_models(const gr_graph *g, uint32_t role, gr_str *names)
{
    uint32_t count = 0;
    for (size_t m = 0; m < g->n_models; m++) {
        bool there = false;
        for (size_t i = 0; i < g->n_nodes; i++)
            there = there || (g->nodes[i]->model == g->models[m] && g->nodes[i]->placement.role == role);
        if (there) gr_str_printf(names, "%s%s", count++ ? ", " : "", g->models[m]->name);
    }
    return count;
}

static void check_models(gr_loader *l)
{
    const gr_graph *g = l->g;
    for (size_t i = 0; i < g->n_pools; i++) {
        const gr_ranks_pool *p = &g->pools[i];
        gr_str names = {0};
        uint32_t n = p->models && g->n_roles > 1 ? count_models(g, p->role, &names) : 0;
        if (n > p->models)
            gr_diag_error(l->d, p->at, GR_E_INVALID,
                          "the ranks of pool '%s' hold %u models (%s), and "
                          "'models' allows %u",
                          p->name, n, names.text, p->models);
        gr_str_release(&names);
    }
}

static void check_idle(gr_loader *l)
{
    const gr_graph *g = l->g;
    for (size_t i = 0; i < g->n_pools && g->n_roles > 1; i++) {
        bool used = g->pools[i].with != NULL;
        for (size_t j = 0; j < g->n_nodes; j++)
            used = used || (g->nodes[j]->placement.role == g->pools[i].role && !g->nodes[j]->timing.every);
        if (!used)
            gr_diag_error(l->d, g->pools[i].at, GR_E_INVALID,
                          "no node of an iteration runs on the ranks of pool '%s': 'pool: %s' on a model or "
                          "a node puts it there",
                          g->pools[i].name, g->pools[i].name);
    }
}

void gr_map_pools(gr_loader *l)
{
    if (!l->g->n_pools) return;
    check_updates(l);
    find_pools(l->g);
    check_copies(l);
    check_teachers(l);
    check_repeated(l);
    check_models(l);
    check_idle(l);
}
