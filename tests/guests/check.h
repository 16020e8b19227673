/* A wrong result ends the program with a sentence. */
#pragma once
#include "guest.h"

static int wrong(const char *what) {
    fprintf(stderr, "wrong: %s\n", what);
    return EXIT_WRONG;
}
#define EXPECT(condition) \
    do { \
        if (!(condition)) return wrong(#condition); \
    } while (0)
#define FAILS(code, call) EXPECT((call) == (code))
