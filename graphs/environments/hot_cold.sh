#!/bin/sh
# An environment: the model guesses the record's answer, a number, and is told after each guess whether the answer is
# higher or lower; a right guess is worth 1, less a tenth for each guess before it. docs/ENVIRONMENTS.md.
while read -r line; do
    id=${line#*\"id\":}
    id=${id%%[,\}]*}
    case $line in
    *'"type":"start"'*)
        answer=${line##*\"answer\":}
        answer=$(printf %s "${answer%%[,\}]*}" | tr -cd 0-9)
        eval "answer_$id=\${answer:-0}"
        echo "{\"id\": $id}"
        ;;
    *'"type":"end"'*) unset "answer_$id" ;;
    *)
        eval "answer=\$answer_$id"
        turn=${line##*\"turn\":}
        turn=${turn%%[,\}]*}
        text=${line##*\"text\":\"}
        guess=$(printf %s "${text%%\"*}" | tr -cd 0-9 | cut -c 1-9)
        guess=$(printf %s "${guess:-0}" | sed 's/^0*\(.\)/\1/')
        if [ "$guess" -eq "$answer" ]; then
            echo "{\"id\": $id, \"done\": true, \"reward\": 0.$((turn < 9 ? 9 - turn : 0))}"
        elif [ "$guess" -lt "$answer" ]; then
            echo "{\"id\": $id, \"text\": \"+\", \"metrics\": {\"low\": 1}}"
        else
            echo "{\"id\": $id, \"text\": \"=\"}"
        fi
        ;;
    esac
done
