package daemon

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// loggedError is the last log line of level error.
type loggedError struct {
	at   time.Time
	text string
}

// errorKeeper is a log handler that keeps the last error for `larder status`.
type errorKeeper struct {
	slog.Handler
	last *atomic.Pointer[loggedError]
}

func rememberErrors(log *slog.Logger) (*slog.Logger, *atomic.Pointer[loggedError]) {
	last := new(atomic.Pointer[loggedError])
	return slog.New(errorKeeper{log.Handler(), last}), last
}

// Handle implements slog.Handler.
func (k errorKeeper) Handle(ctx context.Context, rec slog.Record) error {
	if rec.Level >= slog.LevelError {
		text := rec.Message
		rec.Attrs(func(a slog.Attr) bool {
			if a.Key != "stack" {
				text += " " + a.Key + "=" + a.Value.String()
			}
			return len(text) < 1000
		})
		k.last.Store(&loggedError{rec.Time, text})
	}
	return k.Handler.Handle(ctx, rec)
}

// WithAttrs implements slog.Handler.
func (k errorKeeper) WithAttrs(attrs []slog.Attr) slog.Handler {
	return errorKeeper{k.Handler.WithAttrs(attrs), k.last}
}

// WithGroup implements slog.Handler.
func (k errorKeeper) WithGroup(name string) slog.Handler {
	return errorKeeper{k.Handler.WithGroup(name), k.last}
}
