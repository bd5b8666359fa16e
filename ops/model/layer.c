/* ops/model/layer.c: facts that follow from a layer's description: its cost, its state, its text. */
#include "ops/model/layer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

gr_layer_desc gr_layer_plain(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t inner)
{
    return (gr_layer_desc){
        .attention = {.heads = heads,
                      .kv_heads = kv_heads,
                      .head_dim = head_dim,
                      .scale = 1 / sqrtf((float)head_dim),
                      .rope = {.type = GR_ROPE_DEFAULT, .dims = head_dim, .theta = 10000}},
        .dense = {.inner = inner},
        .norm_before = true,
        .norm_eps = 1e-6f,
    };
}

gr_state_kind gr_layer_state(const gr_layer_desc *d)
{
    return d->mixer == GR_MIXER_DELTA ? GR_STATE_FIXED : GR_STATE_PAGED;
}

/* ---- costs -----------------------------------------------------------------------------------------------
 */

static uint64_t attention_macs(const gr_attention_desc *a, uint64_t hidden)
{
    return hidden * gr_qkv_given(a) + hidden * a->heads * a->head_dim;
}

uint32_t gr_layer_inner(const gr_layer_desc *d)
{
    return d->dense.inner + d->experts.top_k * d->experts.inner + d->experts.shared_inner;
}

/* The rule itself: a state is read with k and with q, and written. */
static uint64_t delta_macs(const gr_delta_desc *e, uint64_t hidden)
{
    return hidden * (gr_delta_in(e) + gr_delta_out(e)) + (uint64_t)gr_delta_channels(e) * e->conv +
           3ull * e->value_heads * e->key_dim * e->value_dim;
}

static uint64_t latent_macs(const gr_latent_desc *l, uint64_t hidden)
{
    const uint64_t heads = l->heads;
    return hidden * (gr_latent_in(l) + heads * l->v_dim) + heads * gr_latent_head(l) * l->q_rank +
           heads * gr_latent_kv(l) * l->kv_rank;
}

gr_attention_desc gr_latent_expanded(const gr_latent_desc *d)
{
    return (gr_attention_desc){
        .heads = d->heads, .kv_heads = d->heads, .head_dim = gr_latent_head(d), .scale = d->scale};
}

static uint64_t mixer_macs(const gr_layer_desc *d, uint64_t hidden)
{
    switch (d->mixer) {
    case GR_MIXER_DELTA:
        return delta_macs(&d->delta, hidden);
    case GR_MIXER_LATENT:
        return latent_macs(&d->latent, hidden);
    case GR_MIXER_ATTENTION:
        break;
    }
    return attention_macs(&d->attention, hidden);
}

uint64_t gr_layer_token_macs(const gr_layer_desc *d, uint32_t hidden)
{
    return mixer_macs(d, hidden) + 3ull * hidden * gr_layer_inner(d) +
           (uint64_t)hidden * (d->experts.count + d->experts.shared_gate + 2ull * d->per_layer);
}

uint64_t gr_layer_pair_macs(const gr_layer_desc *d)
{
    const gr_latent_desc *l = &d->latent;
    if (d->mixer == GR_MIXER_LATENT) return (uint64_t)l->heads * (gr_latent_head(l) + l->v_dim);
    return 2ull * d->attention.heads * d->attention.head_dim;
}

double gr_layer_keys(const gr_layer_desc *d, double length)
{
    const double window = d->attention.window;
    if (!d->attention.window || length <= window) return length;
    return 2 * window - window * window / length;
}

/* ---- text ------------------------------------------------------------------------------------------------
 */

bool gr_rope_same(const gr_rope_desc *a, const gr_rope_desc *b)
{
    return a->type == b->type && a->dims == b->dims && a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow && a->attention == b->attention &&
           a->truncate == b->truncate && a->original_positions == b->original_positions &&
           a->share == b->share && a->pairs == b->pairs && a->far == b->far &&
           !memcmp(a->stretch, b->stretch, sizeof(a->stretch));
}

static void describe_rope(const gr_rope_desc *r, gr_str *out)
{
    gr_str_printf(out, " rope %d", r->type);
    if (r->type == GR_ROPE_NONE) return;
    gr_str_printf(out, " %u %.17g %.17g %.17g %.17g", r->dims, r->theta, r->factor, r->low_freq_factor,
                  r->high_freq_factor);
    gr_str_printf(out, " %.17g %.17g %.17g %d %u", r->beta_fast, r->beta_slow, r->attention, r->truncate,
                  r->original_positions);
    if (r->type == GR_ROPE_PROPORTIONAL) gr_str_printf(out, " share %.17g", r->share);
    if (r->pairs) gr_str_printf(out, " far %d", r->far);
    for (uint32_t i = 0; i < r->pairs; i++)
        gr_str_printf(out, " %.9g %.9g", (double)r->stretch[0][i], (double)r->stretch[1][i]);
}

static void describe_attention(const gr_attention_desc *a, gr_str *out)
{
    gr_str_printf(out, " attention %u %u %u window %u %d%d%d%d%d %.9g %.9g", a->heads, a->kv_heads,
                  a->head_dim, a->window, a->sinks, a->gate, a->qkv_bias, a->o_bias, a->qk_norm,
                  (double)a->scale, (double)a->softcap);
    if (a->keys_are_values) gr_str_puts(out, " keys_are_values");
    if (a->value_norm) gr_str_puts(out, " value_norm");
    if (a->keys) gr_str_puts(out, a->keys == GR_KEYS_LENT ? " keys lent" : " keys taken");
    describe_rope(&a->rope, out);
}

static void describe_experts(const gr_experts_desc *e, gr_str *out)
{
    gr_str_printf(out, " experts %u %u %u %d %.9g router %d %d%d%d%d%d %u %u %.9g shared %u %d", e->count,
                  e->top_k, e->inner, e->act, (double)e->limit, e->router, e->softmax_after, e->normalize,
                  e->selection_bias, e->router_bias, e->bias, e->groups, e->top_groups, (double)e->scale,
                  e->shared_inner, e->shared_gate);
    if (e->expert_scale) gr_str_puts(out, " expert_scale");
}

static void describe_latent(const gr_latent_desc *l, gr_str *out)
{
    gr_str_printf(out, " latent %u %u %u %u %u %u %.9g %.9g %d", l->heads, l->q_rank, l->kv_rank, l->nope_dim,
                  l->rope_dim, l->v_dim, (double)l->scale, (double)l->norm_eps, l->interleaved);
    describe_rope(&l->rope, out);
}

static void describe_delta(const gr_delta_desc *e, gr_str *out)
{
    gr_str_printf(out, " delta %u %u %u %u %u", e->key_heads, e->value_heads, e->key_dim, e->value_dim,
                  e->conv);
    if (e->bf16_state) gr_str_puts(out, " bf16_state");
}

void gr_layer_describe(const gr_layer_desc *d, gr_str *out)
{
    if (d->mixer == GR_MIXER_ATTENTION) describe_attention(&d->attention, out);
    if (d->mixer == GR_MIXER_LATENT) describe_latent(&d->latent, out);
    if (d->mixer == GR_MIXER_DELTA) describe_delta(&d->delta, out);
    if (d->mlp == GR_MLP_EXPERTS) describe_experts(&d->experts, out);
    if (d->mlp == GR_MLP_DENSE || gr_layer_is_beside(d))
        gr_str_printf(out, " dense %u %d %.9g", d->dense.inner, d->dense.act, (double)d->dense.limit);
    gr_str_printf(out, " norms %d%d%d %.9g", d->norm_before, d->norm_after, d->norm_plus_one,
                  (double)d->norm_eps);
    if (d->scaled) gr_str_puts(out, " scaled");
    if (d->per_layer) gr_str_printf(out, " per_layer %u", d->per_layer);
}

bool gr_layer_same(const gr_layer_desc *a, const gr_layer_desc *b)
{
    gr_str x = {0}, y = {0};
    gr_layer_describe(a, &x);
    gr_layer_describe(b, &y);
    const bool same = !strcmp(x.text, y.text);
    gr_str_release(&x);
    gr_str_release(&y);
    return same;
}

const char *gr_layer_carries(const gr_layer_desc *d)
{
    if (d->per_layer) return "embeddings of each layer";
    return d->attention.keys ? "layers with the keys and values of another" : NULL;
}

const char *gr_layer_unshared(const gr_layer_desc *d)
{
    if (d->mixer == GR_MIXER_LATENT) return "layers of latent attention";
    if (d->mixer == GR_MIXER_DELTA) return "layers of the gated delta rule";
    return d->attention.window ? "layers with a sliding window" : NULL;
}

/* ---- tokens that are cut over ranks ---------------------------------------------------------------------
 */

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Heads of keys of a rank that has `each` of the heads which share them: the fewest of which each is shared
 * by as many. */
static uint32_t own_keys(uint32_t heads, uint32_t keys, uint32_t each)
{
    return each / common_divisor(heads / keys, each);
}

gr_attention_desc gr_attention_cut(const gr_attention_desc *a, uint32_t ranks)
{
    gr_attention_desc own = *a;
    if (ranks < 2 || !a->heads) return own;
    own.heads = a->heads / ranks;
    own.kv_heads = own_keys(a->heads, a->kv_heads, own.heads);
    own.gate = false;
    return own;
}

gr_delta_desc gr_delta_cut(const gr_delta_desc *d, uint32_t ranks)
{
    gr_delta_desc own = *d;
    if (ranks < 2 || !d->value_heads) return own;
    own.value_heads = d->value_heads / ranks;
    own.key_heads = own_keys(d->value_heads, d->key_heads, own.value_heads);
    return own;
}

/* A rank has the gradients of its key heads' channels where their weights have them, so it has each but once.
 */
static const char *delta_uneven(const gr_delta_desc *d, uint32_t ranks, char buf[48])
{
    const bool values = d->value_heads % ranks, keys = d->key_heads % ranks && ranks % d->key_heads;
    if (!values && !keys) return NULL;
    snprintf(buf, 48, "%u %s heads of the gated delta rule", values ? d->value_heads : d->key_heads,
             values ? "value" : "key");
    return buf;
}

const char *gr_layer_cut_uneven(const gr_layer_desc *d, uint32_t ranks, char buf[48])
{
    const gr_attention_desc *a = &d->attention;
    if (gr_layer_carries(d)) return gr_layer_carries(d);
    if (d->mixer == GR_MIXER_DELTA) return delta_uneven(&d->delta, ranks, buf);
    const uint32_t heads = d->mixer == GR_MIXER_LATENT ? d->latent.heads : a->heads;
    if (heads % ranks) {
        snprintf(buf, 48, "%u heads", heads);
        return buf;
    }
    return a->qk_norm == GR_QK_NORM_WHOLE ? "norms over all heads of q and k" : NULL;
}

uint64_t gr_layer_cut_values(const gr_layer_desc *d, uint32_t ranks)
{
    const gr_attention_desc a = gr_attention_cut(&d->attention, ranks);
    const gr_delta_desc e = gr_delta_cut(&d->delta, ranks);
    const gr_latent_desc *l = &d->latent;
    if (d->mixer == GR_MIXER_LATENT) return (uint64_t)l->heads * (3 * gr_latent_head(l) + l->v_dim);
    return d->mixer == GR_MIXER_DELTA ? (uint64_t)ranks * (gr_delta_in(&e) + gr_delta_out(&e))
                                      : (uint64_t)ranks * (gr_qkv_width(&a) + (uint64_t)a.heads * a.head_dim);
}
