/* See birth.h. */
#include "node/birth.h"

#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"all", "node", "driver", "worker"};

void
tr_birth_write(const struct tr_birth *birth, char out[TR_BIRTH_TEXT_MAX])
{
    (void)snprintf(out, TR_BIRTH_TEXT_MAX, TR_BIRTH_VARIABLE "=1 %s %u %u %u %u %u %d",
        kinds[birth->kind], birth->process, birth->epoch, birth->node_epoch, birth->driver_epoch,
        birth->slot, birth->peer);
}

bool
tr_birth_read(const char *value, struct tr_birth *birth)
{
    char kind[8];
    int end = 0;
    *birth = (struct tr_birth){0};
    if (sscanf(value, "1 %7s %u %u %u %u %u %d%n", kind, &birth->process, &birth->epoch,
            &birth->node_epoch, &birth->driver_epoch, &birth->slot, &birth->peer, &end) != 7 ||
        value[end] != '\0') {
        return false;
    }
    for (size_t i = TR_PROCESS_NODE; i < TR_COUNT(kinds); i++) {
        if (strcmp(kind, kinds[i]) == 0) {
            birth->kind = (enum tr_process_kind)i;
        }
    }
    return birth->kind != TR_PROCESS_ALL && birth->process < TR_PROCESSES_MAX && birth->epoch > 0 &&
           birth->epoch <= UINT16_MAX && birth->node_epoch > 0 &&
           birth->node_epoch <= TR_LIVES_MAX && birth->driver_epoch > 0 &&
           birth->driver_epoch <= TR_LIVES_MAX;
}
