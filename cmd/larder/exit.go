package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"larder/internal/errs"
)

// The exit codes; a test gives one to every errs.Reason. exitCodes explains them.
const (
	exitOK = iota
	exitFailure
	exitUsage
	exitNotFound
	exitUnavailable
	exitConflict
	exitResources
	exitData
	exitStateFailed
	exitStateBad
	exitAudit
	exitDenied
)

// exitCodes explains the exit codes; docs/cli.md is generated from it and from exitOf.
var exitCodes = [...]struct{ when, also string }{
	exitOK:          {"success", ""},
	exitFailure:     {"a failure outside the command line", "`larder doctor` found a failure"},
	exitUsage:       {"the command line, an expression, a recipe or the configuration is wrong", ""},
	exitNotFound:    {"there is no such job, dataset, sample or file", "`larder status`: no daemon runs"},
	exitUnavailable: {"no daemon runs, or it is stopping", ""},
	exitConflict:    {"the name, rank or socket is taken, or the job has ended", "`larder stop`: jobs are live"},
	exitResources:   {"a size exceeds a limit", ""},
	exitData:        {"the dataset, a sample or a state cannot be used", ""},
	exitStateFailed: {"the state directory cannot be written, and the daemon has stopped", ""},
	exitStateBad:    {"the state directory is damaged", ""},
	exitAudit: {"`larder audit` found a sample lost, repeated, foreign or altered",
		"with `--whole`: an epoch is not whole"},
	exitDenied: {"the daemon does not admit this user or token to that", ""},
}

var exitOf = map[errs.Reason]int{
	errs.Invalid:          exitUsage,
	errs.NotFound:         exitNotFound,
	errs.AlreadyExists:    exitConflict,
	errs.RankHeld:         exitConflict,
	errs.Stale:            exitConflict,
	errs.SubsetSyntax:     exitUsage,
	errs.SubsetEmpty:      exitData,
	errs.DatasetEmpty:     exitData,
	errs.DatasetUnread:    exitData,
	errs.SampleBad:        exitData,
	errs.RecipeInvalid:    exitUsage,
	errs.ResourceExceeded: exitResources,
	errs.JobLimit:         exitResources,
	errs.DiskFull:         exitResources,
	errs.RingMemory:       exitResources,
	errs.ConfigInvalid:    exitUsage,
	errs.Unavailable:      exitUnavailable,
	errs.Stopped:          exitUnavailable,
	errs.JobEnded:         exitConflict,
	errs.Protocol:         exitFailure,
	errs.Unsupported:      exitFailure,
	errs.StateFailed:      exitStateFailed,
	errs.StateDamaged:     exitStateBad,
	errs.Token:            exitData,
	errs.Unauthenticated:  exitDenied,
	errs.Denied:           exitDenied,
	errs.Internal:         exitFailure,
}

// exitError carries an exit code of its own, e.g. that of the command larder run ran. With a nil err nothing is
// printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake on the command line.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(hint, format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...), hint}
}

// exitCode is the exit code of an error; that of nil is 0.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e := (*exitError)(nil); errors.As(err, &e) {
		return e.code
	}
	if u := (*usageError)(nil); errors.As(err, &u) {
		return exitUsage
	}
	if f := (*errs.Error)(nil); errors.As(err, &f) {
		if c, ok := exitOf[f.Reason]; ok {
			return c
		}
	}
	return exitFailure
}

// printError writes an error for people: what is wrong, and below it what to do. Joined errors are written one by one.
func printError(w io.Writer, err error) {
	for _, err := range split(err) {
		if e := (*exitError)(nil); errors.As(err, &e) && e.err == nil {
			continue
		}
		hint := ""
		text := err.Error()
		if u := (*usageError)(nil); errors.As(err, &u) {
			hint = u.hint
		} else if f := (*errs.Error)(nil); errors.As(err, &f) {
			hint = f.Hint
			text = strings.TrimSuffix(text, " ("+f.Hint+")")
		}
		fmt.Fprintf(w, "larder: %s\n", text)
		if hint != "" {
			fmt.Fprintf(w, "  fix: %s\n", hint)
		}
	}
}

// split takes joined errors apart, but not the causes of one error.
func split(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range j.Unwrap() {
			out = append(out, split(e)...)
		}
		return out
	}
	return []error{err}
}
