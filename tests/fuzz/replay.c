/* A plain main for fuzz targets: runs every file of the given folders through the target once,
 * so that the committed corpus and each crash ever found stay tests of every build. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int
replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return 0;
    }
    static uint8_t bytes[1 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    /* An exact-size copy lets the address sanitizer see a read past the end. */
    uint8_t *copy = malloc(size + (size == 0));
    if (copy == NULL) {
        abort();
    }
    for (size_t i = 0; i < size; i++) {
        copy[i] = bytes[i];
    }
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 1;
}

int
main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (dir == NULL) {
            fprintf(stderr, "%s: cannot open the corpus folder\n", argv[i]);
            return 1;
        }
        for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
            char path[4096];
            if (e->d_name[0] != '.' &&
                snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name) > 0) {
                count += replay_file(path);
            }
        }
        closedir(dir);
    }
    printf("replayed %d files\n", count);
    return count > 0 ? 0 : 1;
}
