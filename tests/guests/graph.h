/* Graphs and the parameters of their nodes, as in cuda.h. */
#pragma once
#include "api.h"

typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kernel;
    CUcontext ctx;
} KernelParams;
typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
} FillParams;
typedef struct {
    void (*function)(void *);
    void *data;
} HostParams;
