/* Version spans: which published weights sampled which units of a sample. */
#ifndef TROUPE_SPAN_H
#define TROUPE_SPAN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Units from `unit` on (tokens of a response, denoising steps) up to the next span's first unit, or
 * to the end of the sample, were sampled by `version`. A list of spans is run-length encoded: the
 * first begins at unit 0, units and versions grow strictly. */
typedef struct troupe_span {
    uint64_t unit;
    uint64_t version;
} troupe_span;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
