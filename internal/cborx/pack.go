package cborx

import (
	"encoding/binary"
	"iter"
	"slices"

	"github.com/oklog/ulid/v2"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/invariant"
)

// The packed form of a value holds each string once that many items share, and an
// identifier as its 16 bytes. It is CBOR too:
//
//	[ [shared, …], value ]
//
// where in value
//
//	simple(n), n < 16   stands for the nth shared string
//	tag 6 (n)           for the shared string number 16 + n
//
// and everywhere
//
//	tag 7 (16 bytes)    for the text of a ULID, 26 letters
//
// Plain values of ours have neither tags nor such simple values, so nothing is ambiguous,
// and Unpack gives back the very bytes that were packed. The same bytes are packed alike
// everywhere: strings are shared by how often they occur, then by where they occur first.
const (
	majorUint   = 0
	majorBytes  = 2
	majorText   = 3
	majorArray  = 4
	majorTag    = 6
	majorSimple = 7

	tagShared = 6
	tagID     = 7
	simples   = 16 // shared strings with a reference of one byte
)

// Bounds of what is shared. A longer string rarely occurs twice, and what a reference
// stands for bounds what hostile bytes can unfold to: at most maxShared for each of them.
const (
	maxShared  = 255
	maxTallied = 1 << 18 // different strings that are counted, the first ones: some 30 MiB while packing
)

// item is one head, with the payload of a string.
type item struct {
	major byte
	arg   uint64
	raw   []byte
	body  []byte // of a string
}

func (it item) isString() bool { return it.major == majorBytes || it.major == majorText }

// next reads the item that b begins with; of an array, a map or a tag only the head.
func next(b []byte) (item, error) {
	if len(b) == 0 {
		return item{}, errPacked("it ends early")
	}
	it, n, info := item{major: b[0] >> 5}, 1, b[0]&31
	switch {
	case info < 24:
		it.arg = uint64(info)
	case info > 27:
		return item{}, errPacked("%#x is no head of ours", b[0])
	default:
		n += 1 << (info - 24)
		if len(b) < n {
			return item{}, errPacked("it ends inside a head")
		}
		for _, c := range b[1:n] {
			it.arg = it.arg<<8 | uint64(c)
		}
	}
	if it.isString() {
		if it.arg > uint64(len(b)-n) {
			return item{}, errPacked("a string of %d bytes in %d", it.arg, len(b)-n)
		}
		it.body = b[n : n+int(it.arg)]
		n += int(it.arg)
	}
	it.raw = b[:n]
	return it, nil
}

func errPacked(format string, args ...any) error {
	return forgeyard.Errorf("unpack", forgeyard.Invalid, format, args...)
}

func appendHead(b []byte, major byte, arg uint64) []byte {
	major <<= 5
	switch {
	case arg < 24:
		return append(b, major|byte(arg))
	case arg < 1<<8:
		return append(b, major|24, byte(arg))
	case arg < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(arg))
	case arg < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(arg))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), arg)
}

// appendReference refers to the nth shared string.
func appendReference(b []byte, n int) []byte {
	if n < simples {
		return append(b, majorSimple<<5|byte(n))
	}
	return appendHead(appendHead(b, majorTag, tagShared), majorUint, uint64(n-simples))
}

// appendString writes a string that is not shared.
func appendString(b []byte, it item) []byte {
	if it.major == majorText && len(it.body) == ulid.EncodedSize {
		if id, err := ulid.ParseStrict(string(it.body)); err == nil && id.String() == string(it.body) {
			return append(appendHead(appendHead(b, majorTag, tagID), majorBytes, uint64(len(id))), id[:]...)
		}
	}
	return append(b, it.raw...)
}

// Pack returns the packed form of what Marshal wrote.
func Pack(plain []byte) []byte {
	shared := share(plain)
	index := make(map[string]int, len(shared))
	out := appendHead(make([]byte, 0, len(plain)/2), majorArray, 2)
	out = appendHead(out, majorArray, uint64(len(shared)))
	for i, it := range shared {
		index[string(it.raw)] = i
		out = appendString(out, it)
	}
	for it := range items(plain) {
		if !it.isString() {
			out = append(out, it.raw...)
		} else if i, ok := index[string(it.raw)]; ok {
			out = appendReference(out, i)
		} else {
			out = appendString(out, it)
		}
	}
	return out
}

// items yields the items of bytes that Marshal wrote.
func items(plain []byte) iter.Seq[item] {
	return func(yield func(item) bool) {
		for len(plain) > 0 {
			it, err := next(plain)
			invariant.NoError(err, "what is packed was encoded here")
			invariant.True(it.major != majorTag && (it.major != majorSimple || len(it.raw) > 1 || it.arg >= simples), "a value of ours has no tag, here it is tag %d", it.arg)
			if !yield(it) {
				return
			}
			plain = plain[len(it.raw):]
		}
	}
}

// share picks the strings that are worth sharing, the most frequent first.
func share(plain []byte) []item {
	type tally struct {
		it    item
		times int
	}
	var tallies []tally
	known := map[string]int{}
	for it := range items(plain) {
		if !it.isString() || len(it.body) < 2 || len(it.body) > maxShared {
			continue
		}
		if i, ok := known[string(it.raw)]; ok {
			tallies[i].times++
		} else if len(tallies) < maxTallied {
			known[string(it.raw)] = len(tallies)
			tallies = append(tallies, tally{it, 1})
		}
	}
	slices.SortStableFunc(tallies, func(a, b tally) int { return b.times - a.times })
	var out []item
	for _, t := range tallies {
		alone := len(appendString(nil, t.it))
		reference := len(appendReference(nil, len(out)))
		if t.times*alone > alone+t.times*reference {
			out = append(out, t.it)
		}
	}
	return out
}

// Unpack gives back what was packed. It is for Unmarshal to say whether that is a value.
func Unpack(packed []byte) ([]byte, error) {
	shared, rest, err := readShared(packed)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, 2*len(packed))
	for len(rest) > 0 {
		var plain []byte
		if plain, rest, err = unfold(shared, rest); err != nil {
			return nil, err
		}
		out = append(out, plain...)
	}
	return out, nil
}

// unfold reads one item and returns what it stands for.
func unfold(shared [][]byte, b []byte) (plain, rest []byte, err error) {
	it, err := next(b)
	if err != nil {
		return nil, nil, err
	}
	rest = b[len(it.raw):]
	n := it.arg
	switch {
	case it.major == majorSimple && len(it.raw) == 1 && n < simples:
	case it.major == majorTag && n == tagShared:
		which, err := next(rest)
		if err != nil || which.major != majorUint || which.arg > maxTallied {
			return nil, nil, errPacked("a reference without a number")
		}
		n, rest = simples+which.arg, rest[len(which.raw):]
	case it.major == majorTag:
		return readID(it, rest)
	default:
		return it.raw, rest, nil
	}
	if n >= uint64(len(shared)) {
		return nil, nil, errPacked("reference %d to %d shared strings", n, len(shared))
	}
	return shared[n], rest, nil
}

// readShared reads the list of shared strings and returns what follows it.
func readShared(b []byte) (shared [][]byte, rest []byte, err error) {
	outer, err := next(b)
	if err != nil || outer.major != majorArray || outer.arg != 2 {
		return nil, nil, errPacked("a list of two is expected")
	}
	b = b[len(outer.raw):]
	list, err := next(b)
	if err != nil || list.major != majorArray || list.arg > maxTallied {
		return nil, nil, errPacked("a list of at most %d shared strings is expected", maxTallied)
	}
	b = b[len(list.raw):]
	for range list.arg {
		it, err := next(b)
		if err != nil {
			return nil, nil, err
		}
		b = b[len(it.raw):]
		if it.major == majorTag {
			if it.raw, b, err = readID(it, b); err != nil {
				return nil, nil, err
			}
		} else if !it.isString() || len(it.body) > maxShared {
			return nil, nil, errPacked("what is shared is a string of at most %d bytes", maxShared)
		}
		shared = append(shared, it.raw)
	}
	return shared, b, nil
}

// readID reads what follows the tag of an identifier and returns its text as it was.
func readID(tag item, b []byte) (plain, rest []byte, err error) {
	it, err := next(b)
	if err != nil || tag.arg != tagID || it.major != majorBytes || len(it.body) != len(ulid.ULID{}) {
		return nil, nil, errPacked("tag %d: an identifier of %d bytes is expected", tag.arg, len(ulid.ULID{}))
	}
	text := ulid.ULID(it.body).String()
	return append(appendHead(nil, majorText, uint64(len(text))), text...), b[len(it.raw):], nil
}
