#include "expr_batch.h"
int main(void)
{
    return 0;
}
