package spool

import (
	"container/list"
	"context"
	"fmt"
	"sync"
)

// Memory is a spool of so many bytes of memory. The block that was asked for least recently leaves first.
type Memory struct {
	single Single
	bytes  int64

	mu struct {
		sync.Mutex
		blocks map[string]*list.Element // of *inMemory
		recent *list.List               // the most recent first
		used   int64
	}
}

var _ Spool = (*Memory)(nil)

// NewMemory returns an empty spool of that many bytes.
func NewMemory(bytes int64) *Memory {
	m := &Memory{bytes: bytes}
	m.mu.blocks, m.mu.recent = map[string]*list.Element{}, list.New()
	return m
}

// perRecord is what a record takes beside its bytes, perBlock a block.
const (
	perRecord = 8
	perBlock  = 256
)

// inMemory is a block: its records in one piece, and where each ends. It never changes, so readers need no lock, and
// one that left lives as long as it has readers.
type inMemory struct {
	key  string
	data []byte
	ends []int
}

func (b *inMemory) size() int64 {
	return int64(cap(b.data)) + perRecord*int64(cap(b.ends)) + int64(len(b.key)) + perBlock
}

func (b *inMemory) Len() int { return len(b.ends) }

func (b *inMemory) Close() error { return nil }

func (b *inMemory) Record(dst []byte, i int) ([]byte, error) {
	if err := CheckIndex(i, len(b.ends)); err != nil {
		return dst, err
	}
	begin := 0
	if i > 0 {
		begin = b.ends[i-1]
	}
	return append(dst, b.data[begin:b.ends[i]]...), nil
}

// Used is how many bytes the blocks take.
func (m *Memory) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.used
}

// Block implements Spool.
func (m *Memory) Block(ctx context.Context, key string, make Make) (Reader, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	b, err := m.single.Do(ctx, key, func() (any, error) {
		if b := m.find(key); b != nil {
			return b, nil
		}
		w := &memoryWriter{block: &inMemory{key: key}, limit: m.bytes}
		if err := make(ctx, w); err != nil {
			return nil, err
		}
		m.keep(w.block)
		return w.block, nil
	})
	if err != nil {
		return nil, err
	}
	return b.(*inMemory), nil
}

func (m *Memory) find(key string) *inMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.mu.blocks[key]
	if e == nil {
		return nil
	}
	m.mu.recent.MoveToFront(e)
	return e.Value.(*inMemory)
}

func (m *Memory) keep(b *inMemory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.mu.used+b.size() > m.bytes {
		last := m.mu.recent.Back()
		if last == nil {
			return // as large as all: only its readers hold it
		}
		old := m.mu.recent.Remove(last).(*inMemory)
		delete(m.mu.blocks, old.key)
		m.mu.used -= old.size()
	}
	m.mu.blocks[b.key] = m.mu.recent.PushFront(b)
	m.mu.used += b.size()
}

type memoryWriter struct {
	block *inMemory
	limit int64
}

func (w *memoryWriter) Add(record []byte) error {
	if n := w.block.size() + int64(len(record)); n > w.limit {
		return fmt.Errorf("%w: it has more than %d bytes", ErrFull, w.limit)
	}
	w.block.data = append(w.block.data, record...)
	w.block.ends = append(w.block.ends, len(w.block.data))
	return nil
}

// Find returns a block that is there; nil = it is not.
func (m *Memory) Find(key string) Reader {
	if b := m.find(key); b != nil {
		return b
	}
	return nil
}
