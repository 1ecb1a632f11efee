package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sync/errgroup"
)

// parts are the goroutines of a daemon: its engine and its servers.
type parts struct {
	log      *slog.Logger
	stopping func() bool // the daemon takes no more work: a part may end
	group    *errgroup.Group
	stop     context.CancelFunc // ends the engine
	broken   <-chan struct{}    // closed when a part failed
	halves   []net.Listener     // of the Unix socket: gRPC and sessions
}

// begin returns the context that ends with the parts.
func (p *parts) begin(log *slog.Logger, stopping func() bool) context.Context {
	ctx, stop := context.WithCancel(context.Background())
	group, failed := errgroup.WithContext(ctx)
	p.log, p.stopping, p.group, p.stop, p.broken = log, stopping, group, stop, failed.Done()
	return ctx
}

// run runs a part in a goroutine. The first one that fails closes broken.
func (p *parts) run(name string, f func() error) {
	p.group.Go(func() error {
		err := f()
		if err != nil && p.stopping() { // e.g. larder run -- true: closed before the part had begun
			p.log.Debug("a part of the daemon ended", "part", name, "error", err)
			return nil
		}
		if err != nil && !errors.Is(err, net.ErrClosed) {
			p.log.Error("a part of the daemon failed", "part", name, "error", err)
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// end stops the parts and waits for them.
func (p *parts) end() error {
	if p.stop == nil {
		return nil
	}
	p.stop()
	err := p.group.Wait()
	for _, l := range p.halves {
		_ = l.Close()
	}
	return err
}
