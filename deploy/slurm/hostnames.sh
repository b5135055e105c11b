# shellcheck shell=bash
# The names in SLURM's list of nodes, without scontrol, which containers lack. Sourced by bash.

# hostnames LIST: one a line, as `scontrol show hostnames LIST` prints them. `n[1-3,07-09]-x[a,b]` has several brackets;
# commas outside of brackets separate names.
hostnames() {
    local rest=$1 letter depth=0 part=
    while [ -n "$rest" ]; do
        letter=${rest:0:1} rest=${rest:1}
        case $letter in
        '[') depth=1 ;;
        ']') depth=0 ;;
        ,)
            if [ "$depth" = 0 ]; then
                expand_name "$part"
                part=
                continue
            fi
            ;;
        esac
        part+=$letter
    done
    [ -z "$part" ] || expand_name "$part"
}

# expand_name NAME: the names of one that may have brackets.
expand_name() {
    local name=$1 before inside after each first last number
    if [[ $name != *\[* ]]; then
        echo "$name"
        return
    fi
    before=${name%%\[*} inside=${name#*\[}
    after=${inside#*\]} inside=${inside%%\]*}
    local IFS=,
    for each in $inside; do
        if [[ $each != *-* ]]; then
            expand_name "$before$each$after"
            continue
        fi
        first=${each%-*} last=${each#*-}
        # 10# because 08 is no octal number; as many digits as the first one has.
        for ((number = 10#$first; number <= 10#$last; number++)); do
            expand_name "$before$(printf "%0${#first}d" "$number")$after"
        done
    done
}
