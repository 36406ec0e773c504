// Package keeper holds the hard deadline of every running tree in a process of its
// own, so that a daemon which is stopped, hangs or was killed cannot let its work run on.
//
//	daemon ──orders──▶ keeper      hold ID until T · move ID to T · ask ID · release ID
//	daemon ◀─answers── keeper      one for each order, in order
//
//	         hold            T passed, or the daemon's end of the pipe closed
//	(none) ───────▶ held ──────────────────────────────────────────▶ over
//	   ▲              │ release                                        │ release
//	   └──────────────┴────────────────────────────────────────────────┘
//
// The keeper is the same program under another name, in a session of its own, and
// does nothing but count on the clock that runs through sleep and end trees by the
// name that they were given before they were started.
//
// Invariants: a tree is held before its first process exists; over is for good, whatever
// comes after it, and is swept again and again, since a daemon that wakes may be in the
// middle of a fork; when the daemon's end of the pipe closes without a release, everything
// held is over at once. What ends here is never proposed: the daemon asks at the end of
// each step whether it was ended by the keeper.
//
// It knows no leases: what a deadline means is told by who holds. Only Linux has one.
package keeper

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// Name is what the program is called when it is to be a keeper: the first word of its
// arguments.
const Name = "forgeyard-keeper"

// Asked reports whether a program with these arguments is to be a keeper.
func Asked(args []string) bool { return len(args) > 0 && args[0] == Name }

// maxLine bounds an order or an answer: a tree has a handful of control groups.
const maxLine = 64 << 10

// op is what an order asks. Both ends are the same program, so the words may change with
// it; a keeper that outlives its daemon hears no more orders.
type op string

const (
	opHold    op = "hold"
	opMove    op = "move"
	opAsk     op = "ask"
	opRelease op = "release"
)

// order is one line to the keeper.
type order struct {
	Seq    uint64            `json:"seq"`
	Op     op                `json:"op"`
	Orphan executor.Orphan   `json:"orphan"` // of all but hold, only the id
	Until  forgeyard.Instant `json:"until,omitempty"`
}

// answer is one line back.
type answer struct {
	Seq  uint64            `json:"seq"`
	Now  forgeyard.Instant `json:"now"`            // by the keeper's reading
	Over bool              `json:"over,omitempty"` // the tree was ended by the keeper, or is being ended
	Held int               `json:"held"`
}

// readOrder reads one line. io.EOF is the daemon's end.
func readOrder(r *bufio.Reader) (order, error) {
	var o order
	line, err := r.ReadSlice('\n')
	if err != nil {
		return o, err
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, forgeyard.E("keeper", forgeyard.Invalid, err)
	}
	switch {
	case o.Op != opHold && o.Op != opMove && o.Op != opAsk && o.Op != opRelease:
		return o, forgeyard.Errorf("keeper", forgeyard.Invalid, "order %q is not known", forgeyard.Clip(string(o.Op), 20))
	case o.Orphan.ID == "":
		return o, forgeyard.Errorf("keeper", forgeyard.Invalid, "order %d names no tree", o.Seq)
	case o.Until < 0:
		return o, forgeyard.Errorf("keeper", forgeyard.Invalid, "deadline %d is before the boot", o.Until)
	}
	return o, nil
}

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return forgeyard.E("keeper", forgeyard.Invalid, err)
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
