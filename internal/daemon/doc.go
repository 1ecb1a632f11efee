// Package daemon composes one larder daemon: the sockets, the sessions and gRPC servers behind them, the engine, and
// what the engine uses (catalogue, tiers, journal, GPUs).
//
//	Unix socket ─ Mux ─┬─ gRPC ────┐
//	                   └─ sessions ┴─ Engine ─ catalogue, tiers, journal, GPUs
//	TCP ── gRPC ───────────────────┘    │
//	HTTP ── metrics ────────────────────┘
//
// Open builds these parts from the bottom up, and Close takes them down from the top: clients leave first, so that no
// client waits for an answer that cannot come; what the engine uses is closed last. Between the two a program calls
// Serve, or serves its own purpose and leaves the daemon running:
//
//	d, err := daemon.Open(daemon.Options{Config: cfg, Log: log, Level: level, Version: version})
//	if err != nil {
//		return err
//	}
//	defer d.Close()
//	return d.Serve(ctx, daemon.ServeOptions{Signals: signals, DrainTimeout: 10 * time.Second})
//
// A daemon ends in one of three ways. A drain lets running epochs end and ends the jobs (drain). A leave keeps jobs in
// the journal for the next daemon, as if this one had been killed (leave). A close cuts everything off (Close, alone).
// Serve chooses between them; see ServeOptions and `larder stop`.
//
// Opening a daemon sets two limits of the process, unless the environment sets them: the memory limit of the Go
// runtime (GOMEMLIMIT) and GOMAXPROCS. The package parses no flags and prints nothing: cmd/larder does.
package daemon
