/* PCRE2's memory is ours: see ops/text/pattern.h. */
#include "ops/text/pattern.h"

#include <pthread.h>
#include <stdlib.h>

static pcre2_general_context *memory;

static void *allocate(PCRE2_SIZE bytes, void *user)
{
    (void)user;
    return gr_malloc(bytes);
}

static void give_back(void *p, void *user)
{
    (void)user;
    free(p);
}

static void make(void)
{
    memory = pcre2_general_context_create(allocate, give_back, NULL);
}

pcre2_general_context *gr_pattern_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make);
    return memory;
}

pcre2_code *gr_pattern_compile(const char *pattern, size_t n, uint32_t options, int *error, size_t *at)
{
    pcre2_compile_context *c = pcre2_compile_context_create(gr_pattern_memory());
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, n, options, error, at, c);
    pcre2_compile_context_free(c);
    return code;
}
