/* A run's own side of manifests: what ranks have hashed comes together in one, and a checkpoint is looked at
 * before the run goes on from it. */
#include "runtime/run/run_parts.h"

#include "runtime/io/checkpoint_dir.h"

#include <stdlib.h>
#include <string.h>

gr_team *gr_run_team(const gr_running *r)
{
    return r->executor ? gr_executor_queue(r->executor, GR_LANE_COMPUTE)->team : NULL;
}

/* ---- sealed -------------------------------------------------------------------------------------------- */

/* Each block was hashed by at most one rank, and is zero elsewhere. */
static gr_status gather(const gr_running *r, const gr_sealed_file *files, size_t n, gr_diag *d)
{
    gr_comm *c = r->comms.all;
    gr_status st = GR_OK;
    for (size_t i = 0; i < n && c && !st; i++)
        st = c->type->host_reduce(c, files[i].seal->blocks, files[i].seal->n_blocks * sizeof(gr_hash),
                                  GR_COMM_MAX_U8, d);
    return st;
}

/* A run has an id from its first checkpoint on. */
static gr_status identify(gr_running *r, gr_diag *d)
{
    if (r->seal.run.known) return GR_OK;
    gr_status st = GR_OK;
    if (!r->seal.has_id) st = gr_run_id_new(&r->seal.run.id, d);
    r->seal.run.after = r->entered;
    if (!st) st = gr_sealed_run_write(&r->seal.run, r->o->out, d);
    r->seal.run.known = !st;
    return st;
}

/* What bits may depend on: a GPU's name, and the arithmetic of its kernels. Those of the CPU have the same
 * bits with every instruction set. Caller frees. */
static char *machine_of(const gr_kernels *k)
{
    gr_hardware hw;
    const bool named = strcmp(k->device, "cpu") && !gr_hardware_local(&hw, k->device, NULL);
    return gr_printf("%s, %s", named ? hw.name : k->device, k->numerics());
}

static gr_status write_manifest(gr_running *r, const char *aside, gr_sealed_file *files, size_t n, gr_diag *d)
{
    gr_manifest_head head = r->seal.before;
    gr_status st = identify(r, d);
    if (!st) st = gr_outputs_what_runs(r->outputs, aside, d);
    head.run = r->seal.run.id;
    head.step = r->session.step;
    head.inputs = r->inputs;
    char *machine = machine_of(r->session.kernels);
    head.machine = machine;
    if (!st) st = gr_manifest_write(&head, aside, files, n, &r->seal.before.previous, gr_run_team(r), d);
    free(machine);
    r->seal.before.has_previous = true;
    r->seal.before.previous_step = r->session.step;
    return st;
}

gr_status gr_run_seal(gr_running *r, const char *aside, gr_diag *d)
{
    size_t n;
    gr_sealed_file *files = gr_bytes_sealed(r->bytes, &n);
    gr_status st = gather(r, files, n, d);
    if (!st && !gr_comm_rank(r->comms.all)) st = write_manifest(r, aside, files, n, d);
    for (size_t i = 0; i < n; i++) free(files[i].name);
    free(files);
    return st;
}

/* ---- believed ------------------------------------------------------------------------------------------ */

/* What is to be known of the run when its next checkpoint is sealed. */
static gr_status follow(gr_running *r, gr_diag *d)
{
    gr_status st = gr_sealed_run_read(&r->seal.run, r->o->out, r->o->accept_changes ? NULL : d);
    if (r->o->accept_changes) st = GR_OK; /* a new one is written */
    if (st || !r->seal.from) return st;
    const gr_manifest_head head = gr_manifest_says(r->seal.from);
    r->seal.before.has_previous = true;
    r->seal.before.previous_step = head.step;
    r->seal.before.previous = gr_manifest_own(r->seal.from);
    r->seal.has_id = true;
    if (!r->seal.run.known) r->seal.run.id = head.run;
    return GR_OK;
}

gr_status gr_run_believe(gr_running *r, const char *dir, gr_diag *d)
{
    uint64_t step = 0;
    gr_status st = gr_checkpoint_number(strrchr(dir, '/') + 1, &step) ? GR_OK : GR_E_INVALID;
    if (!st && gr_comm_rank(r->comms.all)) /* rank 0 says what is wrong with it as a whole */
        st = r->o->accept_changes ? GR_OK : gr_manifest_read(&r->seal.from, dir, d);
    else if (!st && r->o->accept_changes)
        st = gr_checkpoint_accept(r->o->out, dir, step, gr_run_team(r), d);
    else if (!st)
        st = gr_checkpoint_check(&r->seal.from, r->o->out, dir, step, d);
    if (!st) st = follow(r, d);
    gr_bytes_hold(r->bytes, r->seal.from, r->o->accept_changes);
    return st;
}
