package session

import (
	"encoding/json"

	"larder/internal/errs"
	"larder/internal/session/wire"
	"larder/internal/shm"
)

// input is what the reader of a session reads: with the descriptors that ride on the bytes until the session has an
// attachment. From then on a client passes none, and plain reads cost less; the kernel drops what comes all the same.
type input struct{ s *conn }

func (r *input) Read(p []byte) (int, error) {
	if r.s.attached() {
		return r.s.c.Read(p)
	}
	return r.s.rcv.Read(p)
}

func (s *conn) attached() bool {
	s.rel.Lock()
	defer s.rel.Unlock()
	return s.rel.att != nil
}

// handleWork runs on the reader, as handle does: what a worker sends is carried out at once, so that a worker that
// floods the daemon waits for itself.
func (s *conn) handleWork(h wire.Header, p []byte, at int64) error {
	s.out.waitRoom()
	if (h.Type == wire.Work) == (s.worker != nil) {
		return wire.Violation("a session of a worker begins with its only WORK, not with %s", h.Type)
	}
	switch h.Type { //nolint:exhaustive // the others are refused below
	case wire.Work:
		err := s.guard("WORK", func() error { return s.beginWork(h.ID, p, at) })
		if err != nil {
			s.reply(h.ID, nil, toFault(err))
		}
		return nil
	case wire.Done:
		d, err := wire.ParseDone(p)
		if err != nil {
			return err
		}
		return s.guard("DONE", func() error { return s.worker.Done(d) })
	case wire.Dones:
		d, err := wire.ParseDones(p)
		if err != nil {
			return err
		}
		return s.guard("DONES", func() error { return s.worker.Dones(d) })
	case wire.Failed:
		task, f, err := wire.ParseFailed(p)
		if err != nil {
			return err
		}
		return s.guard("FAILED", func() error { return s.worker.Failed(task, f) })
	case wire.Grow:
		n, err := wire.ParseGrow(p)
		if err != nil {
			return err
		}
		memory, err := s.memory(n, at, s.srv.cfg.Crew.MaxMemory())
		if err != nil {
			return err
		}
		s.worker.Grow(memory)
		return nil
	case wire.Words:
		n, err := wire.ParseWords(p)
		if err != nil {
			return err
		}
		memory, err := s.memory(n, at, wire.MaxWords)
		if err != nil {
			return err
		}
		s.worker.Words(memory)
		return nil
	}
	return wire.Violation("a worker does not send %s", h.Type)
}

// memory maps the memory whose descriptor rides on a frame, of most bytes at most.
func (s *conn) memory(n uint64, at, most int64) (*shm.Segment, error) {
	fd, ok := s.rcv.Take(at)
	if !ok {
		return nil, wire.Violation("no descriptor of the worker's memory rides on the first byte of the frame")
	}
	return shm.MapForeign(fd, int64(min(n, 1<<62)), most)
}

func (s *conn) beginWork(id uint64, p []byte, at int64) error {
	req, err := wire.ParseWork(p)
	if err != nil {
		return err
	}
	switch {
	case s.srv.cfg.Crew == nil:
		return errs.New(errs.Unsupported, "worker", "use a daemon of larder", "this daemon takes no workers")
	case s.srv.draining():
		return s.draining()
	case !s.claim():
		return errs.New(errs.Invalid, "session", "open another session for a worker", "this session has had an attachment")
	}
	defer func() { // also when a panic comes by
		if s.worker == nil {
			s.unclaim()
		}
	}()
	memory, err := s.memory(req.OutBytes, at, s.srv.cfg.Crew.MaxMemory())
	if err != nil {
		return err
	}
	w, err := s.srv.cfg.Crew.Work(s.ctx, req, s.peer, memory, &hand{s, req.Batch})
	if err != nil {
		return err
	}
	b, err := json.Marshal(w.Info())
	if err != nil {
		w.Close(true)
		return err
	}
	s.worker = w
	s.works.Store(true)
	in := w.Input()
	in.Retain()
	s.out.add(out{t: wire.Result, id: id, payload: b, seg: in})
	s.log.Info("worker attached", "dataset", req.Dataset, "worker", w.Info().Worker, "recipes", len(req.Recipes))
	w.Start()
	return nil
}

// closeWorker ends the worker, if there is one.
func (s *conn) closeWorker(clean bool) {
	w := s.worker
	if w == nil {
		return
	}
	s.worker = nil
	s.works.Store(false)
	_ = s.guard("close", func() error { w.Close(clean); return nil })
	s.log.Info("worker left", "worker", w.Info().Worker, "clean", clean)
}

// endWorkers ends the sessions of workers once a daemon that stops serves no others: what they could make, nobody gets.
func (s *Server) endWorkers() {
	if !s.draining() {
		return
	}
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		if !c.works.Load() {
			return
		}
	}
	for _, c := range conns {
		_ = c.c.CloseRead()
	}
}

// hand is the engine's way to one worker.
type hand struct {
	s     *conn
	batch bool // it takes TASKS
}

// Give implements Hand.
func (h *hand) Give(freed []uint64, tasks []wire.TaskFrame) {
	size := wire.HeaderSize + wire.TaskSize
	if h.batch {
		size = 16
	}
	b := make([]byte, 0, len(freed)*(wire.HeaderSize+wire.FreeSize)+len(tasks)*size+wire.HeaderSize+wire.TaskSize)
	var p [max(wire.FreeSize, wire.TaskSize)]byte
	for _, at := range freed {
		b = wire.AppendFrame(b, wire.Free, 0, wire.AppendFree(p[:0], at))
	}
	if h.batch {
		b, tasks = wire.AppendTasks(b, tasks), nil
	}
	for i := range tasks {
		b = wire.AppendFrame(b, wire.Task, 0, tasks[i].Append(p[:0]))
	}
	h.s.out.add(out{frames: b, pushed: true})
}

// Gone implements Hand.
func (h *hand) Gone(err error) {
	h.s.out.add(out{t: wire.Error, payload: wire.MarshalError(toFault(err)), pushed: true})
	_ = h.s.c.CloseRead() // the reader sees the end; what waits is still written
}
