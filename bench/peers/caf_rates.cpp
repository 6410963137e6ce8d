// CAF beside troupe: what a message costs in the C++ actor framework of Debian's libcaf-dev.
//
//   g++ -O2 -std=c++17 caf_rates.cpp -lcaf_core -o caf_rates && ./caf_rates
//
// Rows: a blocking request from outside of the actors, ping-pong of two actors, one-way messages,
// actors spawned. All within one process.
#include <caf/all.hpp>

#include <chrono>
#include <cstdio>

using clock_type = std::chrono::steady_clock;

static double
seconds_since(clock_type::time_point begin)
{
    return std::chrono::duration<double>(clock_type::now() - begin).count();
}

static caf::behavior
echo(caf::event_based_actor *)
{
    return {[](int64_t value) { return value; }};
}

static caf::behavior
pinger(caf::event_based_actor *self, caf::actor peer, int64_t total)
{
    self->send(peer, int64_t{1});
    return {[=](int64_t value) {
        if (value >= total) {
            self->quit();
        } else {
            self->send(peer, value + 1);
        }
    }};
}

static caf::behavior
ponger(caf::event_based_actor *self)
{
    return {[=](int64_t value) { self->send(caf::actor_cast<caf::actor>(self->current_sender()), value); }};
}

static caf::behavior
counter(caf::event_based_actor *self, int64_t total)
{
    return {[=, heard = int64_t{0}](int64_t) mutable {
        if (++heard == total) {
            self->quit();
        }
    }};
}

static void
row(const char *name, double per_s)
{
    std::printf("%-44s %14.2f /s\n", name, per_s);
    std::fflush(stdout);
}

static void
caf_main(caf::actor_system &system)
{
    caf::scoped_actor self{system};
    {
        auto server = system.spawn(echo);
        const int64_t total = 20000;
        auto begin = clock_type::now();
        for (int64_t i = 0; i < total; i++) {
            self->request(server, caf::infinite, i).receive([](int64_t) {}, [](caf::error &) {});
        }
        row("blocking request, one at a time", static_cast<double>(total) / seconds_since(begin));
        caf::anon_send_exit(server, caf::exit_reason::kill);
    }
    {
        const int64_t total = 400000;
        auto peer = system.spawn(ponger);
        auto begin = clock_type::now();
        auto first = system.spawn(pinger, peer, total);
        self->wait_for(first);
        row("ping-pong of two actors, round trips", static_cast<double>(total) / seconds_since(begin));
        caf::anon_send_exit(peer, caf::exit_reason::kill);
    }
    {
        const int64_t total = 1000000;
        auto sink = system.spawn(counter, total);
        auto begin = clock_type::now();
        for (int64_t i = 0; i < total; i++) {
            self->send(sink, i);
        }
        self->wait_for(sink);
        row("one-way messages", static_cast<double>(total) / seconds_since(begin));
    }
    {
        const int total = 100000;
        auto begin = clock_type::now();
        for (int i = 0; i < total; i++) {
            auto made = system.spawn(echo);
            caf::anon_send_exit(made, caf::exit_reason::kill);
        }
        system.await_actors_before_shutdown(true);
        row("actors spawned and ended", static_cast<double>(total) / seconds_since(begin));
    }
}

CAF_MAIN()
