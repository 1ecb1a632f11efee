package engine

import (
	"context"
	"log/slog"

	"larder/internal/engine/work"
)

// maxNotes is how many log lines may wait.
const maxNotes = 1000

// logQueue writes to the log in a goroutine of its own: stderr may be a pipe that is not read, and no caller may wait
// for it.
type logQueue struct {
	log    *slog.Logger
	serial *work.Serial
}

// note writes a line without waiting for it. When the log is not read the last thousand lines are lost.
func (q *logQueue) note(level slog.Level, msg string, args ...any) {
	if q.serial.Waiting() < maxNotes {
		q.serial.Add(func() { q.log.Log(context.Background(), level, msg, args...) })
	}
}
