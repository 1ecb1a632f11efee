// Package trace records what jobs ask for and what is decided about it, for `larder trace record`.
//
// The engine passes each effect, event and measured step to a Recorder, which keeps a bounded amount until a client
// fetches it (Answer) and counts what it had to leave out, so the work never waits for it. While nothing is recorded
// that costs one atomic load each. What a recording says about jobs and the machine at its end comes from the
// functions of Config.
//
// The package reads no file and decides nothing. A Recorder is safe for concurrent use.
package trace
