// Package clock is where the daemon reads the time of its deadlines, so that a test can step it.
//
// On the injected clock (daemon.Options.Clock; `larder serve --clock` in a build with -tags failpoints):
//   - internal/coordinator: Loop's time and timer, and with them leases, idle ranks, outages and every wait that the
//     Core measures
//   - internal/engine: what the status compares with times of the Core, and the timeouts of workers (sample_timeout)
//   - internal/session: the wait for the first bytes and for HELLO, the time that a write may take, the last flush, and
//     since when there is no session
//   - internal/daemon: the end after an idle time, the time for a drain, the time for a reload
//   - internal/journal: the pause between two looks for room on a full disk
//   - internal/store: the pauses between tries, the end of the tries (retry_for), the timeout of a request that stalls,
//     and the budget of retries, which grows with time
//   - internal/source: the waits for the limit of the storage
//
// On the real clock:
//   - what measures cost: the meters of reads, decodes and memory, latencies of stores and their hedges, the waits in
//     the rings, recordings, uptime, the rates that the engine reports
//   - wall time that others see: the mark of a stop, ages of files, signatures of requests, lines of the log
//   - what bounds another process or the kernel, and decides nothing: decoders and trials of images, the pause after a
//     failed accept, the last second of gRPC and HTTP, polls for another process's lock
//   - gRPC's keepalive, whose timers gRPC does not let others set
//
// The stepped clock is larder/internal/clock/stepped. The program contains it only in a build with -tags failpoints
// (internal/archtest). larder/internal/testenv/steppedclock is the side of the test, which decides the time.
package clock
