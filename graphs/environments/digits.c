/* An environment: it says the digits of the record's answer, one after each turn; what the model says behind
 * the last should be their sum. cc -O2 -o digits graphs/environments/digits.c; docs/ENVIRONMENTS.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct game {
    long long id; /* 0: free */
    char digits[32];
} games[4096]; /* as many at once */

static const char *after(const char *line, const char *key) /* what stands behind a key, or nothing */
{
    const char *at = strstr(line, key);
    return at ? at + strlen(key) + strspn(at + strlen(key), "\" :") : "";
}

int main(void)
{
    static char line[1 << 20];
    while (fgets(line, sizeof(line), stdin)) {
        const char *type = after(line, "\"type\""), *answer = after(line, "\"answer\"");
        const long long id = atoll(after(line, "\"id\"")), starts = type[2] == 'a';
        struct game *g = games;
        while (g < games + 4095 && g->id != (starts ? 0 : id)) g++;
        const size_t turn = (size_t)atoll(after(line, "\"turn\"")), n = strlen(g->digits);
        int sum = 0;
        for (const char *d = g->digits; *d; d++) sum += *d - '0';
        if (starts) snprintf(g->digits, 32, "%.*s", (int)strspn(answer, "0123456789"), answer);
        g->id = *type == 'e' ? 0 : id;
        if (starts) printf("{\"id\": %lld}\n", id);
        if (*type == 's' && !starts && turn < n)
            printf("{\"id\": %lld, \"text\": \"%c\"}\n", id, g->digits[turn]);
        if (*type == 's' && !starts && turn >= n)
            printf("{\"id\": %lld, \"done\": true, \"reward\": %d}\n", id,
                   atoi(after(line, "\"text\"")) == sum);
        fflush(stdout);
    }
}
