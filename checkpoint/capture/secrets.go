package capture

import (
	"bytes"
	"errors"
	"io"

	"github.com/forgeyard/forgeyard-node/checkpoint"
)

var errSecret = errors.New("the value of a resolved secret is in it")

// needles are the values to look for, with and without the line end that a file of a
// secret often has and a program strips.
type needles [][]byte

func newNeedles(secrets [][]byte) needles {
	var n needles
	for _, s := range secrets {
		s = bytes.TrimRight(s, "\r\n")
		if len(s) >= minSecret {
			n = append(n, s) // The longer spelling holds the shorter.
		}
	}
	return n
}

func (n needles) in(b []byte) bool {
	for _, s := range n {
		if bytes.Contains(b, s) {
			return true
		}
	}
	return false
}

func (n needles) longest() int {
	l := 0
	for _, s := range n {
		l = max(l, len(s))
	}
	return l
}

// scanner passes bytes on until a needle ends in them; then it fails, before the piece
// that ends it is given away.
type scanner struct {
	r     io.Reader
	n     needles
	tail  []byte // the end of what was passed on, one byte shorter than the longest needle
	found bool
}

func newScanner(r io.Reader, n needles) *scanner { return &scanner{r: r, n: n} }

func (s *scanner) Read(p []byte) (int, error) {
	k, err := s.r.Read(p)
	if k == 0 || len(s.n) == 0 {
		return k, err
	}
	keep := s.n.longest() - 1
	// The seam is searched apart, so that the buffer is not copied.
	seam := append(s.tail, p[:min(k, keep)]...)
	if s.n.in(seam) || s.n.in(p[:k]) {
		s.found = true
		return 0, errSecret
	}
	if k >= keep {
		s.tail = append(s.tail[:0], p[k-keep:k]...)
	} else {
		s.tail = append(s.tail[:0], seam[max(0, len(seam)-keep):]...)
	}
	return k, err
}

// secretFinding says so without saying where: a name can be the secret.
func secretFinding() checkpoint.Finding {
	return checkpoint.Finding{Verdict: checkpoint.Incompatible, Code: checkpoint.CodeSecret, Detail: "the value of a resolved secret is in the payload or in a name; secrets are resolved again for each epoch and never saved"}
}
