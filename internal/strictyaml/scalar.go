package strictyaml

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Size is a number of bytes.
type Size int64

// MilliCPU is thousandths of a core.
type MilliCPU int64

var sizeUnits = []struct {
	name   string
	factor int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

// String is the shortest exact form in binary units, which ParseSize reads back.
func (s Size) String() string {
	for _, u := range sizeUnits[:4] {
		if s >= Size(u.factor) && int64(s)%u.factor == 0 {
			return strconv.FormatInt(int64(s)/u.factor, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// String is in cores where that is exact, else in thousandths.
func (c MilliCPU) String() string {
	if c%1000 == 0 {
		return strconv.FormatInt(int64(c)/1000, 10)
	}
	return strconv.FormatInt(int64(c), 10) + "m"
}

var decimal = regexp.MustCompile(`^[0-9]{1,19}(\.[0-9]{1,9})?$`)

// ParseSize reads bytes, `2GiB`, `1.5MiB`, `500MB`. A bare K, M or G is refused:
// people mean different numbers by it.
func ParseSize(s string) (Size, error) {
	num, factor := s, int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			num, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	n, ok := ParseScaled(num, factor)
	if !ok {
		return 0, badScalar(s, "a size", "bytes as a number, or with a unit: KiB MiB GiB TiB, kB MB GB TB")
	}
	return Size(n), nil
}

// ParseMilliCPU reads cores (`2`, `0.5`) or thousandths (`500m`).
func ParseMilliCPU(s string) (MilliCPU, error) {
	num, factor := s, int64(1000)
	if rest, ok := strings.CutSuffix(s, "m"); ok {
		num, factor = rest, 1
	}
	n, ok := ParseScaled(num, factor)
	if !ok {
		return 0, badScalar(s, "a number of CPUs", "cores (2, 0.5) or thousandths (500m)")
	}
	return MilliCPU(n), nil
}

// ParseScaled reads a decimal that is not negative and multiplies it exactly; what is
// not a whole number after that is refused.
func ParseScaled(num string, factor int64) (int64, bool) {
	if !decimal.MatchString(num) {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(num)
	if !ok {
		return 0, false
	}
	r.Mul(r, new(big.Rat).SetInt64(factor))
	if !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// ParseDuration reads a Go duration that is not negative.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, badScalar(s, "a duration", "a number with a unit: 30s, 10m, 1h30m")
	}
	return d, nil
}

var (
	whole    = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	fraction = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
)

func parseInt(s string, bits int) (int64, error) {
	if !whole.MatchString(s) {
		return 0, badScalar(s, "a whole number", "decimal digits")
	}
	n, err := strconv.ParseInt(s, 10, bits)
	if err != nil {
		return 0, badScalar(s, "a whole number in range", fmt.Sprintf("%d to %d", int64(-1)<<(bits-1), int64(uint64(1)<<(bits-1)-1)))
	}
	return n, nil
}

func parseUint(s string, bits int) (uint64, error) {
	if !whole.MatchString(s) || s[0] == '-' {
		return 0, badScalar(s, "a whole number", "decimal digits, not negative")
	}
	n, err := strconv.ParseUint(s, 10, bits)
	if err != nil {
		return 0, badScalar(s, "a whole number in range", fmt.Sprintf("0 to %d", uint64(math.MaxUint64)>>(64-bits)))
	}
	return n, nil
}

func parseFloat(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !fraction.MatchString(s) {
		return 0, badScalar(s, "a number", "a decimal number, such as 0.01")
	}
	return f, nil
}

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, badScalar(s, "a truth value", "true or false")
}

func badScalar(s, what, allowed string) error {
	return forgeyard.Errorf("", forgeyard.Invalid, "%q is not %s; allowed: %s", forgeyard.Clip(s, maxQuoted), what, allowed)
}
