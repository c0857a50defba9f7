// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
)

// Constraints are CEL expressions over parameters that every proposed setting
// must satisfy; the baseline is exempt.
type Constraints []Constraint

// Constraint is one compiled expression. In it the parameters of role "default"
// stand under their own names, and every parameter under roles["role"]["name"].
type Constraint struct {
	Expr    string
	program cel.Program
}

// MarshalJSON writes the expression.
func (c Constraint) MarshalJSON() ([]byte, error) { return json.Marshal(c.Expr) }

var celName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// constraints compiles the expressions against the parameters of the space.
func (r *reader) constraints(exprs []string, space Space) Constraints {
	if len(exprs) == 0 {
		return nil
	}
	options := []cel.EnvOption{
		cel.Variable("roles", cel.MapType(cel.StringType, cel.MapType(cel.StringType, cel.DynType))),
		cel.CrossTypeNumericComparisons(true),
	}
	for _, name := range slices.Sorted(maps.Keys(space[DefaultRole])) {
		if celName.MatchString(name) && name != "roles" {
			options = append(options, cel.Variable(name, cel.DynType))
		}
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		r.problem("constraints", "%v", err)
		return nil
	}
	var compiled Constraints
	for i, expr := range exprs {
		path := fmt.Sprintf("constraints[%d]", i)
		ast, issues := env.Compile(expr)
		if issues.Err() != nil {
			r.problem(path, "%s", strings.ReplaceAll(issues.Err().Error(), "\n", " "))
			continue
		}
		if t := ast.OutputType(); t != cel.BoolType && t != cel.DynType {
			r.problem(path, "must be true or false, is of type %s", t)
			continue
		}
		program, err := env.Program(ast)
		if err != nil {
			r.problem(path, "%v", err)
			continue
		}
		compiled = append(compiled, Constraint{expr, program})
	}
	return compiled
}

// Allow reports whether every constraint holds for p.
func (cs Constraints) Allow(p Params) (bool, error) {
	if len(cs) == 0 {
		return true, nil
	}
	vars, roles := map[string]any{}, map[string]any{}
	for role, params := range p {
		plain := map[string]any{}
		for name, v := range params {
			plain[name] = v.Any()
			if role == DefaultRole {
				vars[name] = v.Any()
			}
		}
		roles[role] = plain
	}
	vars["roles"] = roles
	for i, c := range cs {
		out, _, err := c.program.Eval(vars)
		if err != nil {
			return false, fmt.Errorf("constraints[%d] with %s: %w", i, p, err)
		}
		holds, ok := out.Value().(bool)
		if !ok {
			return false, fmt.Errorf("constraints[%d] with %s: must be true or false, is %v", i, p, out.Value())
		}
		if !holds {
			return false, nil
		}
	}
	return true, nil
}
