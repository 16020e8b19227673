/* Functions that no shared library of glibc 2.28 has: linked into libcuda.so.1, where they are not
   visible from outside. No header of the build machine's glibc is used, so that its version does
   not matter. */

typedef unsigned long word;
typedef unsigned char byte;

extern long syscall(long number, ...);

enum { SYS_NEWFSTATAT = 262, CURRENT_DIRECTORY = -100, NO_FOLLOW = 0x100, EMPTY_PATH = 0x1000 };

/* Exported functions only since 2.33. The kernel's structure is that of stat64. */
int fstatat64(int directory, const char *path, void *to, int flags) {
    return (int)syscall(SYS_NEWFSTATAT, directory, path, to, flags);
}
int stat64(const char *path, void *to) { return fstatat64(CURRENT_DIRECTORY, path, to, 0); }
int lstat64(const char *path, void *to) { return fstatat64(CURRENT_DIRECTORY, path, to, NO_FOLLOW); }
int fstat64(int file, void *to) { return fstatat64(file, "", to, EMPTY_PATH); }

/* Part of each program and library instead of libc.so.6, in every version. */
extern void *__dso_handle;
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
extern int __cxa_atexit(void (*)(void *), void *, void *);
int pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
    return __register_atfork(before, parent, child, __dso_handle);
}
int atexit(void (*function)(void)) {
    return __cxa_atexit((void (*)(void *))(void *)function, 0, __dso_handle);
}

/* Since 2.35; gcc's unwinder calls this since gcc 12. Finds the unwind table for a code address.
   The loader's list of libraries gives the same answer. */
struct found { word flags; void *start, *end, *map, *eh_frame; word reserved[7]; };
struct segment { unsigned type, flags; word offset, address, physical, file_size, size, align; };
struct library { word base; const char *name; const struct segment *segments; unsigned short number; };
extern int dl_iterate_phdr(int (*)(struct library *, word, void *), void *);

enum { LOADED = 1, UNWIND_TABLE = 0x6474e550 };
struct search { word address; struct found *found; };

static int look(struct library *library, word size, void *data) {
    struct search *search = data;
    struct found found = {0};
    (void)size;
    for (unsigned i = 0; i < library->number; i++) {
        const struct segment *segment = &library->segments[i];
        word start = library->base + segment->address;
        if (segment->type == UNWIND_TABLE)
            found.eh_frame = (void *)start;
        else if (segment->type == LOADED && search->address - start < segment->size) {
            found.start = (byte *)start;
            found.end = (byte *)start + segment->size;
        }
    }
    if (!found.end || !found.eh_frame)
        return 0;
    *search->found = found;
    return 1;
}

int _dl_find_object(void *address, struct found *found) {
    struct search search = {(word)address, found};
    return dl_iterate_phdr(look, &search) ? 0 : -1;
}
