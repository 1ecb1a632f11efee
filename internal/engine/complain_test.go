package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"larder/internal/bits"
	"larder/internal/coordinator"
	"larder/internal/engine/trace"
	"larder/internal/engine/work"
	"larder/internal/testenv"
	"larder/jobs"
)

// TestABrokenLedgerIsFoundInTheLog breaks a ledger, and has what tests look for in logs find the line of it.
func TestABrokenLedgerIsFoundInTheLog(t *testing.T) {
	member := new(bits.Set)
	member.Add(1)
	ledger := jobs.NewLedger(3, member, 0)
	if err := ledger.Commit(1); err != nil {
		t.Fatal(err)
	}
	broken := ledger.Commit(1)
	if broken == nil {
		t.Fatal("a sample was picked twice, and the ledger took it")
	}
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var out bytes.Buffer
		log := slog.New(handler(&out))
		log.Info("job ended", "job", "no epoch is violated")
		e := &Engine{log: &logQueue{log, work.NewSerial()}, recorder: trace.NewRecorder(trace.Config{})}
		go e.log.serial.Run()
		e.Do(coordinator.Complain{Job: 1, Text: broken.Error()})
		e.log.serial.Wait(e.log.serial.Mark())
		e.log.serial.Stop()
		if line := testenv.Bug(out.String()); !strings.Contains(line, "object 1 was picked twice") {
			t.Errorf("%s: %q was found in %s", name, line, &out)
		}
	}
}
