// Package demo shows what larder is for in under a minute: it draws a dataset, trains several simulated jobs on it
// without and with sharing, counts the work, and proves from what the clients received that nothing was lost.
//
// It is an ordinary user of the daemon: jobs are separate processes that speak the local session (client), the daemons
// are children of the same binary, and the work is counted by their public counters. What each job must receive is
// computed here from the drawn files alone, never asked of a daemon. It measures one machine on one afternoon; bench is
// where figures are made that can be compared.
//
// Run owns everything it makes (folder, daemons, clients) and takes it away again, whatever ends it; the report is the
// only file that stays.
package demo
