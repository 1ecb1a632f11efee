package stepped

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Follow returns a clock that the server at an address, unix:PATH, moves (larder/internal/testenv/steppedclock). It
// waits for the first time. When the server is gone, the clock keeps its last time.
func Follow(address string) (*Clock, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok || path == "" {
		return nil, fmt.Errorf("follow the clock %q: it is no address of a clock; name its socket as unix:PATH", address)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("follow the clock of a test, which must listen before: %w", err)
	}
	lines := bufio.NewReader(conn)
	now, err := next(lines)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("follow the clock %s: %w", address, err)
	}
	c := New(now)
	if err := answer(conn, now); err != nil {
		conn.Close()
		return nil, fmt.Errorf("follow the clock %s: %w", address, err)
	}
	go func() {
		defer conn.Close()
		for {
			now, err := next(lines)
			if err != nil {
				return
			}
			c.Set(now)
			if answer(conn, now) != nil {
				return
			}
		}
	}()
	return c, nil
}

// next reads "now NS".
func next(r *bufio.Reader) (time.Time, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return time.Time{}, err
	}
	text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "now ")
	ns, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil {
		return time.Time{}, fmt.Errorf("it says %q, not now and nanoseconds; is it another server?", line)
	}
	return time.Unix(0, ns), nil
}

func answer(c net.Conn, now time.Time) error {
	_, err := fmt.Fprintf(c, "ok %d\n", now.UnixNano())
	return err
}
