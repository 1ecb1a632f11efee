// Package telemetry shows what the daemon counts: the log, Prometheus metrics and a few pages over HTTP.
//
// It counts nothing itself: every scrape asks for a larder.v1 Stats and translates it, so /metrics, /debug/vars, gRPC
// and the command line can never disagree. It changes nothing in the daemon; every page is read-only. docs/metrics.md
// lists the metrics, and a test holds it to that.
package telemetry
