#include "runtime/base.h"

int main(void)
{
    return 0;
}
