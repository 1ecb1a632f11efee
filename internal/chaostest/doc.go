// Package chaostest runs the real binary and real clients while processes are killed, stopped and starved, connections
// cut and disks full, and has the auditor judge what the clients were given. It holds tests only: a few of each fault
// with every commit, as many as the environment says at night (internal/tools/nightly.sh, docs/guarantees-tests.md).
package chaostest
