/* The library as another program uses it: errors as values, plans as objects, runs by the iteration,
 * functions of the program, columns where they lie, and memory that runs out without ending anybody. */
#include <graphrun.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/unit/test.h"

#define QUICKSTART "graphs/quickstart"

/* A graph over 16 additions; %s: its data; its reward node. */
static const char graph_text[] =
    "graph: library\n"
    "models: {actor: {checkpoint: " QUICKSTART "/config.json, train: {lr: 1.0e-3}}}\n"
    "state: {bonus: {init: 0.5, next: bonus}}\n"
    "nodes:\n"
    "  prompts: {op: prompts, file: %s, batch: 4, max_tokens: 8, template: \"{question}\"}\n"
    "  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, max_tokens: 4}\n"
    "  reward: %s\n"
    "  advantage: {op: compute, expr: reward - group_mean(reward)}\n"
    "  update: {op: update, model: actor, of: rollout, loss: -token_mean(advantage * logprob)}\n"
    "log: {bonus: bonus}\n"
    "run: {steps: 3, seed: 1, checkpoint: {last: false}}\n";

#define BY_FUNCTION "{op: reward, of: rollout, answer: prompts.answer, function: first_digit}"

typedef struct fixture {
    char folder[64], data[96], out[96], text[2048];
    graphrun_ask ask;
    graphrun_log *log;
} fixture;

static void write_graph(fixture *f, const char *reward)
{
    snprintf(f->text, sizeof(f->text), graph_text, f->data, reward);
    f->ask = (graphrun_ask){.size = sizeof(f->ask),
                            .text = f->text,
                            .text_bytes = strlen(f->text),
                            .device = "cpu",
                            .out = f->out};
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof(*f));
    strcpy(f->folder, "/tmp/graphrun-api.XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->data, sizeof(f->data), "%s/data.jsonl", f->folder);
    snprintf(f->out, sizeof(f->out), "%s/run", f->folder);
    FILE *data = fopen(f->data, "w");
    for (int i = 0; i < 16; i++)
        fprintf(data, "{\"question\": \"%d+%d=\", \"answer\": \"%d\"}\n", i, 2 * i, 3 * i);
    fclose(data);
    f->log = graphrun_log_new();
    write_graph(f, BY_FUNCTION);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", f->folder);
    graphrun_log_free(f->log);
    const int status = system(command);
    free(f);
    return status;
}

static void assert_said(const fixture *f, graphrun_severity severity, const char *text)
{
    for (size_t i = 0; i < graphrun_log_count(f->log); i++) {
        const graphrun_message *m = graphrun_log_at(f->log, i);
        if (m->severity == severity && strstr(m->whole, text)) return;
    }
    for (size_t i = 0; i < graphrun_log_count(f->log); i++)
        print_message("%s\n", graphrun_log_at(f->log, i)->whole);
    fail_msg("nobody said: %s", text);
}

/* ---- functions -------------------------------------------------------------------------------------------
 */

typedef struct seen {
    int calls, watched;
    double rewards; /* of the last call */
    const char *fail;
} seen;

/* 1 where the response begins with a digit; all that a batch has is looked at. */
static void first_digit(void *user, const graphrun_batch *b, graphrun_call *c)
{
    seen *s = user;
    s->calls++;
    s->rewards = 0;
    assert_int_equal(b->rows.n, 16);
    assert_int_equal(b->rows.token_offset[16] - b->rows.token_offset[0], b->rows.n_tokens);
    for (uint32_t i = 0; i < b->rows.n; i++) {
        assert_int_equal(b->rows.group[i], i / 4);
        assert_non_null(strstr(b->record[i].bytes, "\"question\""));
        assert_int_equal(strlen(b->answer[i].bytes), b->answer[i].n);
        assert_non_null(strchr(b->prompt[i].bytes, '='));
        assert_true(b->rows.ids[i * b->rows.stride] >= 0);
        assert_true(b->rows.logprob[i * b->rows.longest] <= 0);
        b->scores[i] = b->response[i].n && b->response[i].bytes[0] >= '0' && b->response[i].bytes[0] <= '9';
        s->rewards += b->scores[i] / b->rows.n;
    }
    if (s->fail && !*s->fail) b->scores[3] = NAN;
    if (s->fail && *s->fail) graphrun_fail(c, s->fail);
}

/* Advantages add up to nothing in each group, and are the function's rewards less their mean. */
static void look(void *user, const graphrun_seen *x, graphrun_call *c)
{
    seen *s = user;
    const graphrun_column *advantage = NULL, *reward = NULL;
    (void)c;
    s->watched++;
    for (size_t i = 0; i < x->n; i++) {
        if (!strcmp(x->column[i].name, "advantage")) advantage = &x->column[i];
        if (!strcmp(x->column[i].name, "reward")) reward = &x->column[i];
    }
    assert_non_null(advantage);
    assert_non_null(reward);
    assert_int_equal(advantage->n, 16);
    assert_int_equal(advantage->type, GRAPHRUN_F32);
    assert_int_equal(advantage->level, GRAPHRUN_SEQUENCE);
    double sum = 0, mean = 0;
    for (int i = 0; i < 16; i++) sum += ((const float *)advantage->data)[i];
    for (int i = 0; i < 16; i++) mean += ((const float *)reward->data)[i] / 16;
    assert_close(sum, 0, 1e-5, 0);
    assert_close(mean, s->rewards, 1e-6, 0);
}

static double number(const graphrun_iteration *it, const char *name)
{
    for (size_t i = 0; i < it->n; i++)
        if (!strcmp(it->number[i].name, name)) return it->number[i].value;
    fail_msg("iteration %u has no %s", it->step, name);
    return 0;
}

/* ---- tests -----------------------------------------------------------------------------------------------
 */

static void test_errors_come_back_with_their_places(void **state)
{
    fixture *f = *state;
    write_graph(f, "{op: reward, of: rolout, rule: exact}");
    assert_int_equal(graphrun_check(&f->ask, f->log), GRAPHRUN_E_INVALID);
    assert_said(f, GRAPHRUN_ERROR, "graph:7:");
    assert_said(f, GRAPHRUN_ERROR, "rolout");
    graphrun_log_clear(f->log);
    f->ask.text = NULL;
    f->ask.graph = "not-there.yaml";
    assert_int_not_equal(graphrun_check(&f->ask, f->log), GRAPHRUN_OK);
    assert_said(f, GRAPHRUN_ERROR, "not-there.yaml");
    graphrun_log_clear(f->log);
    f->ask.size = 8;
    assert_int_equal(graphrun_check(&f->ask, f->log), GRAPHRUN_E_INVALID);
    assert_said(f, GRAPHRUN_ERROR, "graphrun_ask.size is 8");
    f->ask.size = sizeof(f->ask) + 8; /* of a newer header */
    assert_int_equal(graphrun_check(&f->ask, NULL), GRAPHRUN_E_INVALID);
}

static void test_a_plan_is_an_object(void **state)
{
    fixture *f = *state;
    graphrun_plan *p = NULL;
    assert_int_equal(graphrun_check(&f->ask, f->log), GRAPHRUN_OK);
    assert_int_equal(graphrun_plan_new(&p, &f->ask, f->log), GRAPHRUN_OK);
    const graphrun_plan_facts facts = graphrun_plan_of(p, 0);
    uint64_t peak = 0;
    assert_true(facts.fits);
    assert_string_equal(facts.graph, "library");
    assert_int_equal(facts.peak_bytes, facts.arena_bytes + facts.overhead_bytes);
    for (uint32_t i = 0; i < facts.n_steps; i++) {
        const uint64_t bytes = graphrun_plan_step(p, 0, i).resident_bytes;
        peak = bytes > peak ? bytes : peak;
    }
    assert_true(peak > 0 && peak <= facts.arena_bytes);
    assert_int_equal(graphrun_plan_step(p, 0, facts.peak_step).resident_bytes, peak);
    for (uint32_t i = 0; i < facts.n_entries; i++) {
        const graphrun_entry e = graphrun_plan_entry(p, 0, i);
        assert_true(e.offset + e.bytes <= (e.on_device ? facts.arena_bytes : facts.host_bytes));
    }
    assert_null(graphrun_plan_step(p, 0, facts.n_all_steps).what);
    assert_null(graphrun_plan_entry(p, 1, 0).what);
    assert_non_null(strstr(graphrun_plan_json(p), facts.numerics));
    graphrun_plan_free(p);
    f->ask.budget = 4096;
    assert_int_equal(graphrun_plan_new(&p, &f->ask, f->log), GRAPHRUN_E_NOFIT);
    assert_false(graphrun_plan_of(p, 0).fits);
    graphrun_plan_free(p);
}

static void test_a_run_is_asked_for_by_the_iteration(void **state)
{
    fixture *f = *state;
    seen s = {0};
    const graphrun_function function = {.name = "first_digit", .score = first_digit, .user = &s};
    const graphrun_watch watch = {.node = "advantage", .saw = look, .user = &s};
    const graphrun_iteration *it = NULL;
    graphrun_run *r = NULL, *second = NULL;
    f->ask.functions = &function;
    f->ask.n_functions = 1;
    f->ask.watches = &watch;
    f->ask.n_watches = 1;
    assert_int_equal(graphrun_run_new(&r, &f->ask, f->log), GRAPHRUN_OK);
    assert_int_equal(graphrun_run_new(&second, &f->ask, f->log), GRAPHRUN_E_INVALID);
    assert_said(f, GRAPHRUN_ERROR, "one at a time");
    assert_string_equal(graphrun_run_out(r), f->out);
    assert_int_equal(graphrun_run_set(r, "bonus", 2, f->log), GRAPHRUN_E_INVALID); /* nothing has run */
    for (uint32_t step = 1; step <= 3; step++) {
        if (graphrun_run_next(r, &it, f->log)) assert_said(f, GRAPHRUN_NOTE, "no failure");
        assert_non_null(it);
        assert_int_equal(it->step, step);
        assert_int_equal(it->steps, 3);
        assert_int_equal(s.calls, step);
        assert_int_equal(s.watched, step);
        assert_close(number(it, "reward_mean"), s.rewards, 1e-6, 0);
        assert_close(number(it, "bonus"), step == 3 ? 2.25 : 0.5, 0, 0);
        if (step == 2) assert_int_equal(graphrun_run_set(r, "bonus", 2.25, f->log), GRAPHRUN_OK);
        graphrun_log_clear(f->log);
        assert_int_equal(graphrun_run_set(r, "bonuss", 1, f->log), GRAPHRUN_E_INVALID);
        assert_said(f, GRAPHRUN_ERROR, "did you mean 'bonus'?");
    }
    assert_int_equal(graphrun_run_next(r, &it, f->log), GRAPHRUN_OK);
    assert_null(it);
    assert_int_equal(graphrun_run_next(r, &it, f->log), GRAPHRUN_OK); /* and so it stays */
    assert_null(it);
    assert_int_equal(graphrun_run_free(r, f->log), GRAPHRUN_OK);
}

static void test_a_run_that_stops_has_its_checkpoint(void **state)
{
    fixture *f = *state;
    seen s = {0};
    char path[128];
    struct stat at;
    const graphrun_function function = {.name = "first_digit", .score = first_digit, .user = &s};
    const graphrun_iteration *it = NULL;
    graphrun_run *r = NULL;
    f->ask.functions = &function;
    f->ask.n_functions = 1;
    assert_int_equal(graphrun_run_new(&r, &f->ask, f->log), GRAPHRUN_OK);
    assert_int_equal(graphrun_run_next(r, &it, f->log), GRAPHRUN_OK);
    graphrun_run_stop(r);
    assert_int_equal(graphrun_run_next(r, &it, f->log), GRAPHRUN_OK);
    assert_null(it);
    assert_int_equal(graphrun_run_free(r, f->log), GRAPHRUN_OK);
    snprintf(path, sizeof(path), "%s/checkpoints/step-1", f->out);
    assert_int_equal(stat(path, &at), 0);
    graphrun_ask on = {
        .size = sizeof(on), .resume = f->out, .device = "cpu", .functions = &function, .n_functions = 1};
    if (graphrun_run_new(&r, &on, f->log)) assert_said(f, GRAPHRUN_NOTE, "no failure");
    assert_int_equal(graphrun_run_next(r, &it, f->log), GRAPHRUN_OK);
    assert_int_equal(it->step, 2);
    assert_int_equal(graphrun_run_free(r, f->log), GRAPHRUN_OK); /* which stops it */
}

static void fails(fixture *f, seen *s, const char *says)
{
    const graphrun_function function = {.name = "first_digit", .score = first_digit, .user = s};
    const graphrun_iteration *it = NULL;
    graphrun_run *r = NULL;
    f->ask.functions = &function;
    f->ask.n_functions = 1;
    assert_int_equal(graphrun_run_new(&r, &f->ask, f->log), GRAPHRUN_OK);
    assert_int_equal(graphrun_run_next(r, &it, f->log), GRAPHRUN_E_FAILED);
    assert_null(it);
    assert_said(f, GRAPHRUN_ERROR, says);
    assert_int_equal(graphrun_run_next(r, &it, f->log), GRAPHRUN_E_FAILED); /* and so it stays */
    assert_int_equal(graphrun_run_free(r, f->log), GRAPHRUN_OK);            /* it was told */
}

static void test_a_function_that_fails_ends_the_run_with_its_words(void **state)
{
    fails(*state, &(seen){.fail = "out of patience"}, "the function 'first_digit' failed: out of patience");
    fails(*state, &(seen){.fail = ""}, "gave nan for sequence 3");
}

static void refused(fixture *f, const char *says)
{
    const graphrun_iteration *it = NULL;
    graphrun_run *r = NULL;
    graphrun_log_clear(f->log);
    graphrun_status st = graphrun_run_new(&r, &f->ask, f->log);
    if (!st) st = graphrun_run_next(r, &it, f->log);
    assert_int_equal(st, GRAPHRUN_E_INVALID);
    assert_said(f, GRAPHRUN_ERROR, says);
    graphrun_run_free(r, NULL);
}

static void test_what_cannot_be_run_is_refused_by_name(void **state)
{
    fixture *f = *state;
    seen s = {0};
    const graphrun_function function = {.name = "first_digits", .score = first_digit, .user = &s};
    graphrun_watch watch = {.node = "rollout", .saw = look, .user = &s};
    refused(f, "'function: first_digit' is a function of the program that runs the graph");
    f->ask.functions = &function;
    f->ask.n_functions = 1;
    refused(f, "did you mean 'first_digits'?");
    write_graph(f, "{op: reward, of: rollout, function: first_digit, workers: 2}");
    refused(f, "'workers' goes with 'command'");
    write_graph(f, "{op: reward, of: rollout, answer: prompts.answer, rule: exact}");
    f->ask.watches = &watch;
    f->ask.n_watches = 1;
    watch.node = "advantages";
    refused(f, "there is no node 'advantages' to watch");
    f->ask.ranks = "2";
    refused(f, "graphrun exec --ranks 2");
    f->ask = (graphrun_ask){.size = sizeof(f->ask)};
    refused(f, "a graph is missing");
}

/* Guesses are answered with "warm", three times at most, and paid for turns: id by id, in whatever lists they
 * come. */
static void warm(void *user, const char *requests, size_t n, graphrun_call *c)
{
    seen *s = user;
    char reply[16384] = "[";
    assert_int_equal(strlen(requests), n);
    s->calls++;
    for (const char *at = requests; (at = strstr(at, "\"type\":\"")); at++) {
        const bool start = !strncmp(at + 8, "start", 5), end = !strncmp(at + 8, "end", 3);
        const char *id = at; /* of this object: its braces hold others */
        for (int depth = 0; depth < 1 && id > requests; id--) depth += (*id == '{') - (*id == '}');
        id = strstr(id, "\"id\":");
        if (end) continue;
        const size_t used = strlen(reply);
        snprintf(reply + used, sizeof(reply) - used, "%s{\"id\": %ld%s}", used > 1 ? ", " : "", atol(id + 5),
                 start     ? ""
                 : s->fail ? ", \"rewards\": 1"
                           : ", \"text\": \"+1=\", \"reward\": 0.5");
    }
    strcat(reply, "]");
    graphrun_reply(c, reply, strlen(reply));
}

static void converse(fixture *f, seen *s)
{
    static const char from[] = "samples: 4, max_tokens: 4",
                      to[] = "samples: 4, max_tokens: 4, turns: 3, max_context: 48, "
                             "environment: {function: warm}";
    write_graph(f, "{op: reward, of: rollout, from: environment}");
    char *at = strstr(f->text, from);
    char *rest = strdup(at + strlen(from));
    snprintf(at, sizeof(f->text) - (size_t)(at - f->text), "%s%s", to, rest);
    free(rest);
    f->ask.text_bytes = strlen(f->text);
    static graphrun_function function = {.name = "warm", .answer = warm};
    function.user = s;
    f->ask.functions = &function;
    f->ask.n_functions = 1;
}

static void test_a_function_answers_the_turns_of_conversations(void **state)
{
    fixture *f = *state;
    seen s = {0};
    const graphrun_iteration *it = NULL;
    graphrun_run *r = NULL;
    converse(f, &s);
    graphrun_status st = graphrun_run_new(&r, &f->ask, f->log);
    if (!st) st = graphrun_run_next(r, &it, f->log);
    if (st) assert_said(f, GRAPHRUN_NOTE, "no failure");
    assert_true(s.calls > 0);
    assert_close(number(it, "reward_mean"), number(it, "rollout.turns_mean") / 2, 1e-5, 0);
    assert_true(number(it, "rollout.turns_mean") > 1);
    assert_int_equal(graphrun_run_free(r, f->log), GRAPHRUN_OK);
    s.fail = "bad";
    snprintf(f->out, sizeof(f->out), "%s/other", f->folder);
    assert_int_equal(graphrun_run_new(&r, &f->ask, f->log), GRAPHRUN_OK);
    assert_int_equal(graphrun_run_next(r, &it, f->log), GRAPHRUN_E_FAILED);
    assert_said(f, GRAPHRUN_ERROR, "unknown key 'rewards'");
    graphrun_run_free(r, NULL);
}

/* In a process of its own: what is lost is lost with it. */
static int without_memory(fixture *f)
{
    graphrun_plan *p = NULL;
    char *model = malloc(sizeof(f->text));
    snprintf(model, sizeof(f->text), "%s", f->text);
    f->ask.text = model;
    if (graphrun_plan_new(&p, &f->ask, NULL)) return 10; /* threads have what they take once */
    graphrun_plan_free(p);
    struct rlimit limit;
    FILE *statm = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    if (!statm || fscanf(statm, "%lu", &pages) != 1) return 11;
    fclose(statm);
    limit.rlim_cur = limit.rlim_max = pages * 4096UL + (12UL << 20);
    if (setrlimit(RLIMIT_AS, &limit)) return 12;
    void *last = NULL; /* what the allocator still has goes, too */
    for (size_t n = 1 << 20; n >= 16; n /= 2)
        for (void *x; (x = malloc(n));) {
            *(void **)x = last;
            last = x;
        }
    const graphrun_status st = graphrun_plan_new(&p, &f->ask, NULL);
    return st == GRAPHRUN_E_NOMEM ? 0 : 13;
}

static void test_memory_that_runs_out_ends_nobody(void **state)
{
    fixture *f = *state;
    int status = 0;
    if (getenv("GR_SANITIZED")) skip(); /* sanitizers take address space of their own */
    pid_t child = fork();
    if (!child) _exit(without_memory(f));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_errors_come_back_with_their_places, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_plan_is_an_object, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_run_is_asked_for_by_the_iteration, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_run_that_stops_has_its_checkpoint, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_function_that_fails_ends_the_run_with_its_words, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_run_is_refused_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_function_answers_the_turns_of_conversations, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_memory_that_runs_out_ends_nobody, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
