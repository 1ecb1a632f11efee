package telemetry

import (
	"io"
	"log/slog"

	"larder/internal/errs"
)

// NewLogger returns the daemon's log. Level (debug, info, warn, error) can be changed later through the LevelVar;
// format is text or json.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, *slog.LevelVar, error) {
	v := new(slog.LevelVar)
	if err := SetLevel(v, level); err != nil {
		return nil, nil, err
	}
	opts := &slog.HandlerOptions{Level: v}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), v, nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), v, nil
	}
	return nil, nil, errs.New(errs.ConfigInvalid, "log.format", "write text or json", "log.format %q", format)
}

// SetLevel changes the least level that is logged.
func SetLevel(v *slog.LevelVar, level string) error {
	switch level {
	case "debug":
		v.Set(slog.LevelDebug)
	case "info":
		v.Set(slog.LevelInfo)
	case "warn":
		v.Set(slog.LevelWarn)
	case "error":
		v.Set(slog.LevelError)
	default:
		return errs.New(errs.ConfigInvalid, "log.level", "write debug, info, warn or error", "log.level %q", level)
	}
	return nil
}
