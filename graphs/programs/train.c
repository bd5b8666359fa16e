/* Train the quickstart from C, with a reward in C: tools/quickstart.sh has made its data and its model.
 *
 *     cc graphs/programs/train.c -o train $(pkg-config --cflags --libs graphrun) && ./train
 */
#include <graphrun.h>
#include <stdio.h>
#include <string.h>

/* 1 for the right answer, and a tenth for a wrong one with as many digits. */
static void right_or_near(void *user, const graphrun_batch *b, graphrun_call *c)
{
    (void)user;
    (void)c;
    for (uint32_t i = 0; i < b->rows.n; i++) {
        const graphrun_text *is = &b->response[i], *wanted = &b->answer[i];
        b->scores[i] = !strcmp(is->bytes, wanted->bytes) ? 1 : is->n == wanted->n ? 0.1 : 0;
    }
}

static int said(const graphrun_log *l, graphrun_status st)
{
    for (size_t i = 0; i < graphrun_log_count(l); i++) fprintf(stderr, "%s\n", graphrun_log_at(l, i)->whole);
    return st != GRAPHRUN_OK;
}

int main(void)
{
    const graphrun_function reward = {.name = "right_or_near", .score = right_or_near};
    static const char graph[] = "graph: train_c\n"
                                "use: quickstart.yaml\n"
                                "nodes: {reward: {rule: null, function: right_or_near}}\n";
    const graphrun_ask ask = {.size = sizeof(ask),
                              .graph = "graphs/train_c.yaml", /* whose folder has quickstart.yaml */
                              .text = graph,
                              .text_bytes = sizeof(graph) - 1,
                              .functions = &reward,
                              .n_functions = 1};
    const graphrun_iteration *it;
    graphrun_log *log = graphrun_log_new();
    graphrun_run *run;
    graphrun_status st = graphrun_run_new(&run, &ask, log);
    while (!st && !(st = graphrun_run_next(run, &it, log)) && it)
        for (size_t i = 0; i < it->n; i++)
            if (!strcmp(it->number[i].name, "reward_mean")) {
                printf("step %u: reward %.3f\n", it->step, it->number[i].value);
                if (it->number[i].value > 0.8) graphrun_run_stop(run);
            }
    if (!st) printf("results are in %s\n", graphrun_run_out(run));
    graphrun_run_free(run, log);
    const int failed = said(log, st);
    graphrun_log_free(log);
    return failed;
}
