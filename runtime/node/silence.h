/* How long somebody has given no sign of life, as far as its watcher was there to see it: a watcher
 * that was stopped itself, with all the others or alone, has not waited meanwhile. */
#ifndef TR_NODE_SILENCE_H
#define TR_NODE_SILENCE_H

#include <stdint.h>

/* A watcher looks every so often; of a longer pause only so much counts. */
#define TR_LOOK_NS UINT64_C(1000000000)
/* The default of how long a process may be silent until it is killed; above what a person, a
 * snapshot or a slow disk takes. */
#define TR_SILENT_NS UINT64_C(60000000000)

struct tr_silence {
    uint64_t beat_ns; /* as it was seen last */
    uint64_t looked_ns;
    uint64_t silent_ns;
};

/* The sign of life reads `beat_ns` at the time now_ns: how long it has read so. */
static inline uint64_t
tr_silence_look(struct tr_silence *silence, uint64_t beat_ns, uint64_t now_ns)
{
    uint64_t pause_ns = now_ns > silence->looked_ns ? now_ns - silence->looked_ns : 0;
    if (silence->looked_ns == 0 || beat_ns != silence->beat_ns) {
        silence->beat_ns = beat_ns;
        silence->silent_ns = 0;
        pause_ns = now_ns > beat_ns ? now_ns - beat_ns : 0;
    }
    silence->silent_ns += pause_ns < TR_LOOK_NS ? pause_ns : TR_LOOK_NS;
    silence->looked_ns = now_ns;
    return silence->silent_ns;
}

#endif
