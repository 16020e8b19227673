/* Structures for copies of rows and boxes, as in cuda.h. */
#pragma once
#include "api.h"

typedef struct {
    size_t x, y;
    int kind;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch;
} Side;
typedef struct {
    Side src, dst;
    size_t width, height;
} Rect;
typedef struct {
    size_t x, y, z, level;
    int kind;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    CUcontext ctx;
    size_t pitch, height;
} BoxSide;
typedef struct {
    BoxSide src, dst;
    size_t width, height, depth;
} Box;
