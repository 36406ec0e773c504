package cas

import (
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/forgeyard/forgeyard-node"
)

// Kind is what an entry of a tree is. It travels: append only.
type Kind uint8

const (
	// File is a regular file.
	File Kind = 1
	// Dir is a directory, named by its own tree.
	Dir Kind = 2
	// Symlink is a link; its target stays inside the root.
	Symlink Kind = 3
)

func (k Kind) String() string {
	switch k {
	case File:
		return "file"
	case Dir:
		return "dir"
	case Symlink:
		return "symlink"
	}
	return "unknown"
}

// Entry is one name in a directory.
type Entry struct {
	Name     string           `cbor:"1,keyasint"`
	Kind     Kind             `cbor:"2,keyasint"`
	Exec     bool             `cbor:"3,keyasint,omitempty"` // a file that may be executed
	Size     int64            `cbor:"4,keyasint,omitempty"` // bytes of the file, or of the dir's encoded tree
	Digest   forgeyard.Digest `cbor:"5,keyasint,omitzero"`  // the file's whole digest, or the dir's tree
	Manifest forgeyard.Digest `cbor:"6,keyasint,omitzero"`  // exactly when Size > BlockSize
	Target   string           `cbor:"7,keyasint,omitempty"` // of a symlink
}

// Ref gives what a peer needs to fetch the entry's bytes.
func (e Entry) Ref() Ref { return Ref{Digest: e.Digest, Size: e.Size, Manifest: e.Manifest} }

// Tree is one directory, its entries sorted by the bytes of their names.
//
//	{0: "forgeyard.tree/1", 1: [{1: name, 2: kind, ...}, ...]}
//
// Owner, times and other mode bits are no content and are not kept.
type Tree struct {
	Entries []Entry
}

type treeWire struct {
	Format  string  `cbor:"0,keyasint"`
	Entries []Entry `cbor:"1,keyasint"`
}

// Sort puts the entries into canonical order.
func (t *Tree) Sort() {
	sort.Slice(t.Entries, func(i, j int) bool { return t.Entries[i].Name < t.Entries[j].Name })
}

// Validate checks all that one directory can be checked for by itself. Whether a
// link leaves the root depends on where the tree stands: see ValidateTarget.
func (t Tree) Validate() error {
	if len(t.Entries) > MaxTreeEntries {
		return forgeyard.Errorf("cas tree", forgeyard.Limit, "%d entries are more than the bound of %d in one directory", len(t.Entries), MaxTreeEntries)
	}
	for i, e := range t.Entries {
		if err := e.validate(); err != nil {
			return err
		}
		if i > 0 && t.Entries[i-1].Name >= e.Name {
			return forgeyard.Errorf("cas tree", forgeyard.Invalid, "entry %q stands twice or out of order", e.Name)
		}
	}
	return nil
}

func (e Entry) validate() error {
	if err := ValidateName(e.Name); err != nil {
		return err
	}
	bad := func(why string) error {
		return forgeyard.Errorf("cas tree", forgeyard.Invalid, "%s %q: %s", e.Kind, e.Name, why)
	}
	switch e.Kind {
	case File, Dir:
		switch {
		case e.Target != "":
			return bad("only a symlink has a target")
		case e.Kind == Dir && e.Exec:
			return bad("a directory has no exec bit")
		case e.Kind == Dir && (e.Size < 1 || e.Size > MaxTreeBytes):
			return bad("the size of its tree is out of bounds")
		case e.Size < 0 || e.Size > MaxBlobSize:
			return bad("the size is out of bounds")
		case e.Digest.IsZero():
			return bad("the digest is missing")
		case (e.Size == 0) != (e.Digest == Empty()):
			return bad("size and digest disagree on whether it is empty")
		case (e.Size > BlockSize) == e.Manifest.IsZero():
			return bad("a manifest belongs to what is larger than a block, and only to that")
		}
		return nil
	case Symlink:
		if e.Exec || e.Size != 0 || !e.Digest.IsZero() || !e.Manifest.IsZero() {
			return bad("a symlink has a target and nothing else")
		}
		return checkTarget(e.Target)
	}
	return bad("the kind is unknown")
}

// ValidateName checks one path component.
func ValidateName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return forgeyard.Errorf("cas tree", forgeyard.Invalid, "%q is not a name", name)
	case len(name) > MaxNameBytes:
		return forgeyard.Errorf("cas tree", forgeyard.Invalid, "name %q has %d bytes, the bound is %d", forgeyard.Clip(name, 40), len(name), MaxNameBytes)
	case strings.ContainsAny(name, "/\x00"):
		return forgeyard.Errorf("cas tree", forgeyard.Invalid, "name %q holds a slash or a NUL", name)
	case !utf8.ValidString(name):
		return forgeyard.Errorf("cas tree", forgeyard.Invalid, "name %q is not UTF-8", name)
	}
	return nil
}

// checkTarget is the part of ValidateTarget that needs no place.
func checkTarget(target string) error {
	bad := func(why string) error {
		return forgeyard.Errorf("cas tree", forgeyard.Invalid, "link target %q %s", forgeyard.Clip(target, 120), why)
	}
	switch {
	case target == "":
		return bad("is empty")
	case len(target) > MaxTargetBytes:
		return bad("is longer than a path may be")
	case !utf8.ValidString(target) || strings.ContainsRune(target, 0):
		return bad("is not UTF-8 text")
	case strings.HasPrefix(target, "/"):
		return bad("is absolute, so it leaves the root")
	}
	named := false
	for c := range strings.SplitSeq(target, "/") {
		if c == ".." && named {
			return bad("goes up after a name; a name may be a link, so only leading .. can be judged")
		}
		named = named || (c != ".." && c != "." && c != "")
	}
	return nil
}

// ValidateTarget refuses a link that leaves the root. dir is the slash path, from
// the root, of the directory that holds the link; "" or "." is the root itself.
//
// A target is any number of `..` and then names without `..`. The leading ones
// count against the real depth of the link's directory, and every later name is a
// directory or a link for which the same holds, so no chain of links can leave.
// A `..` behind a name could: the name may be a link to somewhere less deep.
func ValidateTarget(dir, target string) error {
	if err := checkTarget(target); err != nil {
		return err
	}
	depth := 0
	for c := range strings.SplitSeq(dir, "/") {
		if c != "" && c != "." {
			depth++
		}
	}
	up := 0
	for c := range strings.SplitSeq(target, "/") {
		if c == ".." {
			up++
		}
	}
	if up > depth {
		return forgeyard.Errorf("cas tree", forgeyard.Invalid, "link target %q in directory %q leaves the root", forgeyard.Clip(target, 120), dir)
	}
	return nil
}

// Encode validates and gives the one encoding, whose Sum is the tree's name. The
// entries must be sorted.
func (t Tree) Encode() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	w := treeWire{Format: treeFormat, Entries: t.Entries}
	if w.Entries == nil {
		w.Entries = []Entry{} // an empty array, not null: one content, one encoding
	}
	b, err := encMode.Marshal(w)
	if err != nil {
		return nil, forgeyard.E("cas tree", forgeyard.Invalid, err)
	}
	if len(b) > MaxTreeBytes {
		return nil, forgeyard.Errorf("cas tree", forgeyard.Limit, "the directory encodes to %d bytes, the bound is %d", len(b), MaxTreeBytes)
	}
	return b, nil
}

// DecodeTree reads what Encode wrote and refuses everything else.
func DecodeTree(b []byte) (Tree, error) {
	var w treeWire
	err := decodeCanonical("tree", b, MaxTreeBytes, &w, func() error {
		if w.Format != treeFormat || w.Entries == nil {
			return forgeyard.Errorf("cas decode tree", forgeyard.Invalid, "format %q is not %q, or there are no entries", forgeyard.Clip(w.Format, 40), treeFormat)
		}
		return Tree{Entries: w.Entries}.Validate()
	})
	if err != nil {
		return Tree{}, err
	}
	return Tree{Entries: w.Entries}, nil
}
