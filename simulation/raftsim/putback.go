package raftsim

import (
	"fmt"
	"os"
	"time"
)

// putBack starts a machine from its disk as it was two starts ago, while nobody is there who
// knows what it acknowledged since: one other machine, which was cut off meanwhile, and which
// only knows that it began once more. Then it gets its own disk again.
//
// A copy of the last start, among machines that have heard nothing since, is known to nobody
// (docs/decisions/0052): this is not that.
func (w *world) putBack() {
	p := w.leader()
	if p == nil || len(w.nodes) != 3 {
		return
	}
	m, deaf := w.others(p.m)
	m.crash(true)
	old, dir := m.disk.image(), fmt.Sprintf("%s.old%d", m.name, m.lives)
	if err := copyTree(m.dir, dir); err != nil {
		w.fail("progress", "the disk of %s cannot be copied: %v", m.name, err)
		return
	}
	m.boot()
	w.sleep(10 * w.shape.heartbeat) // all have heard of its start
	w.cut(deaf, true, true, true)
	w.client.hurry(5*w.shape.heartbeat, p.m, 25*time.Millisecond)
	w.sleep(5 * w.shape.heartbeat)
	p.m.crash(true)
	m.crash(true)
	w.trace("%s is started from an old copy of its disk", m.name)
	newest, own := m.disk.image(), m.dir
	m.disk.putBack(old)
	m.dir = dir
	w.cut(deaf, true, true, false)
	m.boot()
	w.client.hurry(12*w.shape.heartbeat, deaf, 25*time.Millisecond)
	w.sleep(12 * w.shape.heartbeat)
	m.crash(true)
	w.trace("%s has its own disk again", m.name)
	if err := os.RemoveAll(m.dir); err != nil {
		w.fail("progress", "the copy of %s cannot be removed: %v", m.name, err)
	}
	m.disk.putBack(newest)
	m.dir = own
	m.boot()
	p.m.boot()
}

// others are the two machines beside one.
func (w *world) others(m *machine) (a, b *machine) {
	i := w.rng.IntN(2)
	return w.nodes[(m.id+1+i)%3], w.nodes[(m.id+2-i)%3]
}
