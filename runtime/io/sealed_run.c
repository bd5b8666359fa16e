/* The id of a run, and the checks of a checkpoint before a run goes on from it. */
#include "runtime/io/sealed_run.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/io/checkpoint_dir.h"
#include "runtime/base/json.h"
#include "runtime/base/files.h"

static char *path_of(const char *run)
{
    return gr_printf("%s/run.json", run);
}

static gr_status parse(gr_sealed_run *s, const gr_json *j, gr_diag *d)
{
    const json_t *id = json_object_get(j->root, "run"), *after = json_object_get(j->root, "sealed_after");
    s->known = json_string_length(id) == GR_HASH_HEX - 1 && gr_hash_parse(json_string_value(id), &s->id) &&
               json_is_integer(after) && json_integer_value(after) >= 0;
    s->after = (uint64_t)json_integer_value(after);
    if (s->known) return GR_OK;
    return gr_diag_error(
        d, (gr_loc){j->path, 0, 0}, GR_E_INVALID,
        "'run' is not 32 hexadecimal digits, or 'sealed_after' not an integer of at least 0");
}

gr_status gr_sealed_run_read(gr_sealed_run *s, const char *run, gr_diag *d)
{
    char *path = path_of(run);
    gr_json j = {0};
    *s = (gr_sealed_run){0};
    gr_status st = gr_path_exists(path) ? gr_json_read(&j, path, d) : GR_OK;
    if (!st && j.root) st = parse(s, &j, d);
    gr_json_release(&j);
    free(path);
    return st;
}

gr_status gr_sealed_run_write(const gr_sealed_run *s, const char *run, gr_diag *d)
{
    char hex[GR_HASH_HEX], *path = path_of(run);
    char *text = gr_printf("{\"run\": \"%s\", \"sealed_after\": %llu}\n", gr_hash_hex(s->id, hex),
                           (unsigned long long)s->after);
    gr_status st = gr_file_write(path, text, strlen(text), d);
    free(text);
    free(path);
    return st;
}

/* ---- checkpoints --------------------------------------------------------------------------------------- */

static bool has_manifest(const char *run, uint64_t step)
{
    char *dir = gr_checkpoint_path(run, step), *path = gr_printf("%s/" GR_MANIFEST, dir);
    const bool there = gr_path_exists(path);
    free(path);
    free(dir);
    return there;
}

/* Whether one before it has a manifest: once a run seals, it goes on to. */
static bool is_sealed_before(const char *run, uint64_t step)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    bool any = false;
    if (gr_checkpoint_list(&steps, &n, run, NULL)) n = 0;
    for (size_t i = 0; i < n && !any; i++) any = steps[i] < step && has_manifest(run, steps[i]);
    free(steps);
    return any;
}

static gr_status check_unsealed(const gr_sealed_run *s, const char *run, const char *dir, uint64_t step,
                                gr_diag *d)
{
    const gr_loc at = {dir, 0, 0};
    if ((s->known && step > s->after) || is_sealed_before(run, step))
        return gr_diag_error(d, at, GR_E_INVALID,
                             "the checkpoint has no " GR_MANIFEST ", which all of this run have: it is not "
                             "the one that was saved");
    gr_diag_warn(d, at,
                 "the checkpoint is of a graphrun that wrote no manifests: whether its files belong together "
                 "is not known");
    return GR_OK;
}

static gr_status check_head(const gr_sealed_run *s, const gr_manifest *m, const char *dir, uint64_t step,
                            gr_diag *d)
{
    const gr_manifest_head head = gr_manifest_says(m);
    const gr_loc at = {dir, 0, 0};
    char is[GR_HASH_HEX], was[GR_HASH_HEX];
    gr_status st = GR_OK;
    if (head.step != step)
        st = gr_diag_error(d, at, GR_E_INVALID,
                           "the manifest is that of iteration %llu, the folder's name %llu",
                           (unsigned long long)head.step, (unsigned long long)step);
    if (s->known && !gr_hash_same(s->id, head.run))
        st = gr_diag_error(d, at, GR_E_INVALID,
                           "the checkpoint is another run's: its id is %s, this run's, in run.json, %s",
                           gr_hash_hex(head.run, is), gr_hash_hex(s->id, was));
    return st;
}

static gr_status check_manifest(gr_manifest **out, const char *run, const char *dir, uint64_t step,
                                gr_diag *d)
{
    gr_sealed_run s;
    gr_status st = gr_sealed_run_read(&s, run, d);
    if (!st) st = gr_manifest_read(out, dir, d);
    if (st) return st;
    return *out ? check_head(&s, *out, dir, step, d) : check_unsealed(&s, run, dir, step, d);
}

gr_status gr_checkpoint_check(gr_manifest **out, const char *run, const char *dir, uint64_t step, gr_diag *d)
{
    gr_manifest *m = NULL;
    gr_status st = check_manifest(&m, run, dir, step, d);
    if (!st && m) st = gr_manifest_check(m, d);
    if (st)
        gr_manifest_free(m);
    else
        *out = m;
    return st;
}

gr_status gr_checkpoint_accept(const char *run, const char *dir, uint64_t step, gr_team *team, gr_diag *d)
{
    gr_manifest *m = NULL;
    gr_diag why;
    gr_diag_init(&why);
    gr_status st = check_manifest(&m, run, dir, step, &why),
              files = m ? gr_manifest_verify(m, team, &why) : GR_OK;
    for (size_t i = 0; i < why.n; i++)
        gr_diag_warn(d, why.messages[i].at, "%s%s", why.messages[i].text,
                     st || files ? "; accepted, as asked for" : "");
    gr_diag_release(&why);
    gr_manifest_free(m);
    return GR_OK;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = gr_printf("%s/%s", dir, name);
    const bool there = gr_path_exists(path);
    free(path);
    return there;
}

/* The checkpoint in dir, whose name tells its iteration unless it was given another. */
static gr_status check_beside(gr_manifest **out, const char *dir, bool accept, gr_diag *d)
{
    uint64_t step;
    char *run = gr_printf("%s/../..", dir);
    gr_status st = GR_OK;
    if (!gr_checkpoint_number(strrchr(dir, '/') + 1, &step)) {
        st = accept ? GR_OK : gr_manifest_read(out, dir, d);
        if (!st && *out) st = gr_manifest_check(*out, d);
    } else if (accept) {
        st = gr_checkpoint_accept(run, dir, step, NULL, d);
    } else {
        st = gr_checkpoint_check(out, run, dir, step, d);
    }
    free(run);
    return st;
}

gr_status gr_checkpoint_beside(gr_manifest **out, const gr_seal **seal, const char *folder, bool accept,
                               gr_diag *d)
{
    char *dir = gr_path_real(folder), *slash = dir ? strrchr(dir, '/') : NULL;
    gr_status st = GR_OK;
    *out = NULL;
    *seal = NULL;
    if (slash && slash > dir) {
        const bool adapters = has_file(folder, "adapter_model.safetensors");
        char *name = gr_printf("%s/%s.safetensors", slash + 1, adapters ? "adapter_model" : "model");
        *slash = '\0';
        if (has_file(dir, "state.json") || has_file(dir, GR_MANIFEST)) st = check_beside(out, dir, accept, d);
        *seal = !st && *out ? gr_manifest_seal(*out, name) : NULL;
        if (!st && *out && !*seal)
            st = gr_diag_error(d, (gr_loc){folder, 0, 0}, GR_E_INVALID,
                               "the manifest of the checkpoint does not name '%s'", name);
        free(name);
    }
    free(dir);
    return st;
}
