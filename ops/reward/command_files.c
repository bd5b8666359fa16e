/* The files that a shell command names: its words, as far as they can be known without running a shell. */
#include "ops/reward/command_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/index.h"

typedef struct words {
    const char *at; /* the rest of the command */
    gr_str word;
    bool first;   /* the word is a command: the first one, or after a separator */
    bool written; /* it is after a > */
} words;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_separator(char c)
{
    return c && strchr(";|&()\n", c);
}

static bool ends_word(char c)
{
    return !c || is_blank(c) || is_separator(c) || c == '<' || c == '>';
}

/* What is between quotes, up to the second one. */
static void take_quoted(words *w)
{
    const char quote = *w->at++;
    for (; *w->at && *w->at != quote; w->at++) {
        if (quote == '"' && *w->at == '\\' && w->at[1]) w->at++;
        gr_str_putc(&w->word, *w->at);
    }
    if (*w->at) w->at++;
}

static void take_word(words *w)
{
    while (!ends_word(*w->at)) {
        if (*w->at == '\'' || *w->at == '"') {
            take_quoted(w);
            continue;
        }
        if (*w->at == '\\' && w->at[1]) w->at++;
        gr_str_putc(&w->word, *w->at++);
    }
}

/* The next word; false: there is none. */
static bool next_word(words *w, bool *begins)
{
    w->written = false;
    for (char before = 0; *w->at && ends_word(*w->at); before = *w->at++) {
        const bool copies = before == '>' && *w->at == '&'; /* 2>&1 */
        if (*w->at == '>') w->written = true;
        if (!is_separator(*w->at) || copies) continue;
        *begins = true;
        w->written = false;
    }
    w->word.len = 0;
    take_word(w);
    gr_str_puts(&w->word, "");
    w->first = *begins && !w->written;
    return w->word.len || *w->at;
}

static bool is_file(const char *path)
{
    struct stat s;
    return !stat(path, &s) && S_ISREG(s.st_mode);
}

static bool is_script(const char *path)
{
    char two[2] = "";
    FILE *f = is_file(path) ? fopen(path, "re") : NULL;
    const bool script = f && fread(two, 1, 2, f) == 2 && two[0] == '#' && two[1] == '!';
    if (f) fclose(f);
    return script;
}

/* What PATH has for a command, where it is a script; caller frees. */
static char *find_script(const char *name)
{
    const char *at = getenv("PATH");
    char *found = NULL;
    for (bool more = at && !strchr(name, '/'); more && !found;) {
        const size_t n = strcspn(at, ":");
        found = gr_printf("%.*s/%s", n ? (int)n : 1, n ? at : ".", name);
        more = at[n] == ':' && !is_file(found);
        if (!is_script(found)) {
            free(found);
            found = NULL;
        }
        at += n + (at[n] == ':');
    }
    return found;
}

typedef struct found_files {
    void (*fn)(void *user, const char *word, const char *path);
    void *user;
    gr_arena *arena;
    gr_index known;
} found_files;

static void add(found_files *f, const char *word, const char *path)
{
    if (gr_index_add(&f->known, gr_arena_strdup(f->arena, path), 0)) f->fn(f->user, word, path);
}

static void scan(found_files *f, const char *command);

/* A word of several is a command of its own: sh -c '...'. */
static void look_at(found_files *f, const char *word, bool first)
{
    const char *value = strchr(word, '=');
    char *script = first && !is_file(word) ? find_script(word) : NULL;
    if (is_file(word))
        add(f, word, word);
    else if (script)
        add(f, word, script);
    else if (value && is_file(value + 1))
        add(f, value + 1, value + 1);
    else if (strpbrk(word, " \t\n"))
        scan(f, word);
    free(script);
}

static void scan(found_files *f, const char *command)
{
    words w = {.at = command};
    for (bool begins = true; next_word(&w, &begins);) {
        if (w.written || !w.word.len) continue;
        look_at(f, w.word.text, w.first);
        begins = begins && strchr(w.word.text, '='); /* an assignment stands before its command */
    }
    gr_str_release(&w.word);
}

void gr_command_files(const char *command, void (*fn)(void *user, const char *word, const char *path),
                      void *user)
{
    found_files f = {.fn = fn, .user = user, .arena = gr_arena_new()};
    scan(&f, command);
    gr_index_release(&f.known);
    gr_arena_free(f.arena);
}

typedef struct named_files {
    const char *owner;
    gr_inputs *in;
    gr_diag *d;
    gr_status st;
} named_files;

static void add_named(void *user, const char *word, const char *path)
{
    named_files *f = user;
    if (!f->st) f->st = gr_inputs_add_file(f->in, GR_INPUT_WORKER, f->owner, word, path, f->d);
}

gr_status gr_command_inputs(const char *command, const char *owner, gr_inputs *in, gr_diag *d)
{
    named_files f = {owner, in, d, GR_OK};
    gr_command_files(command, add_named, &f);
    return f.st;
}
