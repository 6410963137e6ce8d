// The same from C++17: option structs are filled by name, since the macros of the headers are C's.
#include <troupe/ext/host.h>
#include <troupe/roles.h>
#include <troupe/troupe.h>

#include <cstdio>
#include <string>

namespace
{

struct counter {
    long sum;
};

void
add(troupe_ctx *ctx, troupe_call *call)
{
    auto *state = static_cast<counter *>(troupe_state(ctx));
    state->sum += troupe_arg_i64(call, 0);
    troupe_reply_i64(call, state->sum);
}

const troupe_class adder = [] {
    troupe_class c = {};
    c.name = "adder";
    c.state_size = sizeof(counter);
    c.methods[0] = {"add", add};
    return c;
}();

int
drive(troupe_ctx *ctx, void *user)
{
    for (int i = 1; i <= 3; i++) {
        troupe_args args = {};
        troupe_answer *answer = nullptr;
        troupe_args_i64(&args, 7 * i);
        troupe_status status =
            troupe_call_wait(ctx, troupe_to(ctx, "adder", 0), "add", &args, &answer);
        if (status != TROUPE_OK) {
            return 1;
        }
        *static_cast<std::string *>(user) = std::to_string(troupe_arg_i64(answer, 0));
        troupe_answer_free(answer);
    }
    return 0;
}

} // namespace

int
main()
{
    troupe_graph *graph = troupe_graph_new();
    troupe_role_spec role = {};
    role.size = sizeof role;
    role.type = &adder;
    troupe_role_add_with(graph, "adder", &role);

    std::string last;
    troupe_run_options options = {};
    options.size = sizeof options;
    options.drive = drive;
    options.user = &last;
    troupe_run_result result = {};
    troupe_error err = {};
    troupe_status status = troupe_run(graph, &options, &result, &err);
    troupe_graph_free(graph);
    if (status != TROUPE_OK) {
        std::fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    std::printf("user: %s\n", last.c_str());
    return result.code;
}
