/* graphrun: parse the command line, call the command, print what it has to say. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/version.h"
#include "tools/cmd.h"

int gr_exit_status(gr_status st)
{
    if (st == GR_E_DIVERGED && getenv(GR_SUPERVISED)) return GR_EXIT_DIVERGED;
    return st == GR_OK ? 0 : st == GR_E_NOFIT ? 3 : st == GR_E_INVALID ? 2 : 1;
}

int gr_exit_status_input(gr_status st)
{
    return st == GR_E_IO ? 2 : gr_exit_status(st);
}

static const struct {
    const char *name;
    int (*run)(const gr_args *a, gr_diag *d);
} commands[] = {
    {"check", gr_cmd_check},   {"plan", gr_cmd_plan},     {"diff", gr_cmd_diff},
    {"exec", gr_cmd_exec},     {"verify", gr_cmd_verify}, {"init", gr_cmd_init},
    {"ops", gr_cmd_ops},       {"schema", gr_cmd_schema}, {"export", gr_cmd_export},
    {"report", gr_cmd_report}, {"pack", gr_cmd_pack},     {"calibrate", gr_cmd_calibrate},
    {"watch", gr_cmd_watch},   {"audit", gr_cmd_audit},   {"serve", gr_cmd_serve},
};

void gr_cmd_say(gr_diag *d, const char *before)
{
    for (size_t i = 0; i < d->n; i++) {
        char *text = gr_message_format(&d->messages[i]);
        fprintf(stderr, "%s%s\n", before ? before : "", text);
        free(text);
    }
    gr_diag_release(d);
    gr_diag_init(d);
}

typedef void text_maker(gr_str *out);

static int print_text(text_maker *make)
{
    gr_str s = {0};
    make(&s);
    fputs(s.text, stdout);
    gr_str_release(&s);
    return 0;
}

static void put_version(gr_str *out)
{
    gr_str_printf(out, "%s\n", gr_version());
}

static int print_help(const char *command)
{
    gr_str s = {0};
    gr_args_help(command, &s);
    fputs(s.text, stdout);
    gr_str_release(&s);
    return 0;
}

static int dispatch(const gr_args *a, gr_diag *d)
{
    for (size_t i = 0; i < GR_LEN(commands); i++)
        if (!strcmp(commands[i].name, a->command)) return commands[i].run(a, d);
    return 2; /* gr_args_parse has refused what is not built */
}

/* Texts that are asked for in place of a command; NULL: argv is of another kind. */
static text_maker *text_asked(int argc, char **argv)
{
    static const struct {
        const char *name;
        text_maker *make;
    } texts[] = {{"--man", gr_args_man}, {"--version", put_version}};
    for (size_t i = 0; argc == 2 && i < GR_LEN(texts); i++)
        if (!strcmp(argv[1], texts[i].name)) return texts[i].make;
    return NULL;
}

/* graphrun --completion [SHELL] */
static int print_completion(const char *shell, gr_diag *d)
{
    gr_str s = {0};
    const bool known = gr_args_completion(shell, &s);
    if (!known)
        gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--completion '%s' must be one of bash zsh fish", shell);
    if (known) fputs(s.text, stdout);
    gr_str_release(&s);
    return known ? 0 : 2;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of write, not our end */
    signal(SIGXFSZ, SIG_IGN); /* so is a file that may not grow */
    gr_args a = {0};
    gr_diag d;
    gr_diag_init(&d);
    text_maker *text = text_asked(argc, argv);
    const bool completes = (argc == 2 || argc == 3) && !strcmp(argv[1], "--completion");
    int status = text                                ? print_text(text)
                 : completes                         ? print_completion(argc == 3 ? argv[2] : "bash", &d)
                 : gr_args_parse(&a, argc, argv, &d) ? 2
                 : a.help                            ? print_help(a.command)
                                                     : dispatch(&a, &d);
    bool progress_only = a.command && !strcmp(a.command, "exec"); /* no reason to call a run failed */
    if ((fflush(stdout) || ferror(stdout)) && !progress_only) {
        gr_diag_error(&d, (gr_loc){0}, GR_E_IO, "cannot write to standard output");
        status = status ? status : 1;
    }
    gr_cmd_say(&d, NULL);
    gr_args_release(&a);
    gr_diag_release(&d);
    return status;
}
