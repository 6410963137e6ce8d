/* Names and texts of the status codes, and the one function that fills a troupe_error. */
#include <troupe/status.h>

#include <stdarg.h>
#include <stdio.h>

const char *
troupe_status_name(troupe_status status)
{
    switch (status) {
#define TR_STATUS_NAME(name, value, text) \
    case TROUPE_##name:                   \
        return #name;
        TROUPE_STATUS_LIST(TR_STATUS_NAME)
#undef TR_STATUS_NAME
    }
    return "UNKNOWN"; /* a code from a peer that is newer than this build */
}

const char *
troupe_status_text(troupe_status status)
{
    switch (status) {
#define TR_STATUS_TEXT(name, value, text) \
    case TROUPE_##name:                   \
        return text;
        TROUPE_STATUS_LIST(TR_STATUS_TEXT)
#undef TR_STATUS_TEXT
    }
    return "unknown status";
}

troupe_status
troupe_fail(troupe_error *err, troupe_status status, const char *format, ...)
{
    if (err == NULL) {
        return status;
    }
    err->status = status;
    va_list args;
    va_start(args, format);
    if (vsnprintf(err->text, sizeof err->text, format, args) < 0) {
        err->text[0] = '\0';
    }
    va_end(args);
    return status;
}
